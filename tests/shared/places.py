"""Where things are: the repository, its pages, the golden values, and what a process of its own may import."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
GOLDEN = ROOT / "tests/golden"


def importing(*folders: Path) -> dict[str, str]:
    """The environment of a process that imports svysynth and what lies in these folders, as this one does."""
    here = [str(folder) for folder in (*folders, Path(__file__).parent, ROOT / "src")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(here)}
