"""The declared lower bounds: the package with the lowest version of each dependency that pyproject.toml allows.

`make bounds` installs the wheel with exactly these versions in a fresh environment, runs the demo and the README's
Python, and then a few quick test files. Run it when a bound or a call to a library changes.
"""

import sys
import tempfile
import tomllib
from pathlib import Path

from wheel_alone import ROOT, build_wheel, fresh_environment, put_to_work, run

TESTS = (
    *("core/test_spec.py", "survey/test_survey.py", "survey/test_frame.py", "estimation/test_tables.py"),
    *("models/test_models.py", "mechanisms/pseudo_posterior/test_calibration.py"),
)
TOOLS = ("pytest", "hypothesis")


def lowest(requirements: list[str]) -> list[str]:
    """Each requirement at its lowest version: polars>=1.30 as polars==1.30."""
    return [requirement.replace(">=", "==") for requirement in requirements]


def main() -> None:
    """Install the lowest versions and run."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = lowest(project["dependencies"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = fresh_environment(folder / "environment", build_wheel(folder), *versions, *TOOLS)
        put_to_work(programs, folder)
        # old libraries may warn of each other: what counts here is that the tests pass
        tests = [ROOT / "tests" / test for test in TESTS]
        run(programs / "python", "-m", "pytest", "-q", "-W", "default", *tests, cwd=folder)
    sys.stdout.write(f"The lowest versions run the demo, the README's Python and the tests: {', '.join(versions)}\n")


if __name__ == "__main__":
    main()
