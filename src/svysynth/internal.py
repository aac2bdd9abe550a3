"""The internal folder of a release: how it went, beside the confidential data. It must never leave the house."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import polars as pl

from svysynth.calibration import Calibration
from svysynth.combine import Synthetic
from svysynth.diagnostics import Verdict
from svysynth.engine import Engine, frame_ranges
from svysynth.files import write_frame, write_parts
from svysynth.ledger import Charge
from svysynth.lipschitz import summarize_bounds
from svysynth.releases import Release
from svysynth.report.internal import Review, internal_page
from svysynth.store import Column
from svysynth.survey import Survey


def write_internal(
    folder: Path,
    release: Release,
    survey: Survey,
    synthetic: Synthetic,
    direct: pl.DataFrame,
    review: Review,
    calibration: Calibration | None,
) -> None:
    """Fill an empty folder with what the disclosure review needs."""
    privacy = release.spec.privacy
    assert privacy is not None
    write_frame(direct, folder / "direct-tables.csv")
    _write_json(
        folder / "run.json",
        {
            "ledger": str(privacy.ledger.resolve()),
            "budget": privacy.budget,
            "entry": release.anchor.entry if release.anchor else None,
            "created": release.created.isoformat(),
            "warnings": warnings_of(release),
        },
    )
    if calibration is not None:
        _write_calibration(folder, calibration)
    _write_json(
        folder / "verdict.json",
        {"verdict": review.verdict.level, "reasons": [vars(reason) for reason in review.verdict.reasons]},
    )
    page = internal_page(release, survey, synthetic, review, calibration)
    (folder / "report.html").write_text(page, encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o600)


def warnings_of(release: Release) -> tuple[str, ...]:
    """What who made a release ought to know, and the public must not."""
    others = release.charge.also_charged if isinstance(release.charge, Charge) else ()
    return tuple(
        f"The same data were charged to budget '{name}' too. One population has one budget: its ε adds up over both."
        for name in others
    )


def _write_calibration(folder: Path, calibration: Calibration) -> None:
    _write_json(
        folder / "diagnostics.json",
        _figures(calibration.fit.verdict)
        | {
            "target": calibration.target,
            "largest_bound": calibration.largest_bound,
            "unweighted_largest_bound": _largest(calibration.bounds, calibration.fit.records.engine),
        },
    )
    bounds = {
        "bound": calibration.bounds,
        "alpha": calibration.fit.alpha,
        "weighted_bound": calibration.weighted_bounds,
    }
    parts = frame_ranges(len(calibration.bounds))
    frames = (pl.DataFrame({name: column[part.start : part.stop] for name, column in bounds.items()}) for part in parts)
    write_parts(frames, folder / "records.parquet")
    trials: Sequence[tuple[float, float]] = [(trial.constant, trial.largest_bound) for trial in calibration.trials]
    write_frame(pl.DataFrame(trials, schema=["constant", "largest_bound"], orient="row"), folder / "calibration.csv")


def _largest(bounds: Column, engine: Engine) -> float:
    found = summarize_bounds(bounds, engine)
    return found.largest if found.all_finite else inf


def _figures(verdict: Verdict) -> dict[str, float]:
    return {
        "r_hat": verdict.rhat,
        "ess_bulk": verdict.ess_bulk,
        "ess_tail": verdict.ess_tail,
        "divergences": verdict.divergences,
        "e_bfmi": verdict.ebfmi,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
