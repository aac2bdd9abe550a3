"""The internal folder of a release: evidence for disclosure review. It is confidential: do not share it."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.base import Evidence
from svysynth.privacy.ledger import Charge
from svysynth.privacy.release import Release
from svysynth.publishing.report.internal import Review, internal_page
from svysynth.survey.files import write_frame, write_json
from svysynth.survey.survey import Survey


def write_internal(
    folder: Path,
    release: Release,
    survey: Survey,
    synthetic: Synthetic,
    direct: pl.DataFrame,
    review: Review,
    evidence: Evidence,
) -> None:
    """Fill an empty folder with what the disclosure review needs."""
    privacy = release.spec.privacy
    assert privacy is not None
    write_frame(direct, folder / "direct-tables.csv")
    write_json(
        folder / "run.json",
        {
            "ledger": str(privacy.ledger.resolve()),
            "budget": privacy.budget,
            "entry": release.anchor.entry if release.anchor else None,
            "created": release.created.isoformat(),
            "warnings": warnings_of(release),
        },
    )
    evidence.write(folder)
    write_json(
        folder / "verdict.json",
        {"verdict": review.verdict.level, "reasons": [vars(reason) for reason in review.verdict.reasons]},
    )
    page = internal_page(release, survey, synthetic, review, evidence)
    (folder / "report.html").write_text(page, encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o600)


def warnings_of(release: Release) -> tuple[str, ...]:
    """Warnings for the producer of a release, which are not for the public."""
    others = release.charge.also_charged if isinstance(release.charge, Charge) else ()
    return tuple(
        f"The same data were charged to budget '{name}' too. One population has one budget: the ε of both adds up."
        for name in others
    )
