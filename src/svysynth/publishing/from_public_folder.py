"""Post-processing: further synthetic files and other tables from a release's public folder, for anybody who has it.

The public folder of a release from noisy sums holds everything that was measured. Whatever is made from it costs no ε:
no ledger is consulted, nothing is charged, and the promise of the release covers it. Releases of other mechanisms do
not allow this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.new_folder import refuse_existing, write_folder
from svysynth.core.notebook import Html, card
from svysynth.estimation.combining import Synthetic
from svysynth.estimation.tables import make_table
from svysynth.mechanisms.base import Further, mechanism_of
from svysynth.mechanisms.synthetic_files import wrong
from svysynth.privacy.manifest import Manifest
from svysynth.publishing.verification import STRANGE, open_release

UNCHARGED = (
    "Made from the public files alone. This is uncharged post-processing of the release, covered by the promise of the "
    "release. It is not part of the release, and the producer of the release has not seen it."
)


@dataclass(frozen=True, eq=False)
class More:
    """The further synthetic files and tables of a release, at no privacy cost."""

    manifest: Manifest
    source: Further

    def __repr__(self) -> str:
        return f"More of a release of {self.manifest.created}: {self.left:,} further synthetic files, and any table"

    def _repr_html_(self) -> Html:
        """What can still be made, and the promise that covers it."""
        facts = {"further synthetic files": f"{self.left:,}, by synthetic(files) or write_files(files, folder)"}
        facts |= {"tables": f"any by {', '.join(self.manifest.survey.public)}, by tabulate(by, statistics)"}
        sentences = (UNCHARGED, *self.manifest.statement)
        return card(f"More of a release of {self.manifest.created}", sentences=sentences, facts=facts)

    @property
    def left(self) -> int:
        """How many further synthetic files there can be."""
        return self.source.left

    def tabulate(
        self,
        by: str | Sequence[str],
        statistics: str | Sequence[str] = ("count", "mean"),
        domain: str | None = None,
    ) -> pl.DataFrame:
        """One table with all its margins, as if the release contained it; `domain` is one of those in the manifest."""
        return self.source.tabulate_all([make_table(by, statistics, domain)])

    def synthetic(self, files: int) -> Synthetic:
        """Further synthetic files as surveys in memory; the same ones each time."""
        return replace(self.source.synthetic(files), standing="post-processing")

    def write_files(self, files: int, folder: str | Path) -> list[Path]:
        """Write further synthetic files to a new folder, numbered after those of the release; return their paths."""
        folder = Path(folder)
        refuse_existing(folder)

        def build(building: Path) -> None:
            self.source.write(files, building)
            for path in building.iterdir():
                path.chmod(0o644)
            building.chmod(0o755)

        write_folder(folder, build)
        return sorted(folder.iterdir())


def more(release: str | Path) -> More:
    """Further synthetic files and tables of a release, from its public folder alone: no ledger, no cost.

    For releases of `fbs` or `fbp` with the guarantee `global`.
    """
    public, manifest = open_release(release)
    mechanism = mechanism_of(manifest.privacy)
    try:
        source = mechanism.further(public, manifest)
    except STRANGE:
        raise wrong("has public files that do not belong to its manifest") from None
    if source is None:
        problem = f"is of a kind that allows no further files ({mechanism.title(manifest.privacy.mechanism)})"
        remedy = "make tables from its own files as its report says; anything else needs a new release, which costs ε"
        raise SurveyError("file", "the release", problem, remedy)
    return More(manifest, source)
