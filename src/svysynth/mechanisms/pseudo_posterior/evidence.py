"""Evidence of a calibration for the internal folder: record bounds without and with weights α, and the diagnostics.

The plots are the paper's (§3.2, §4.2 and the supplement).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column
from svysynth.core.engine import Engine, frame_ranges
from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.streams import Streams
from svysynth.estimation.layout import figure, percent
from svysynth.mechanisms.base import Plot, Rows, Section
from svysynth.mechanisms.pseudo_posterior.calibration import Calibration
from svysynth.mechanisms.pseudo_posterior.record_bounds import summarize_bounds
from svysynth.models.diagnostics import LARGEST_RHAT, SMALLEST_EBFMI, SMALLEST_ESS, Verdict
from svysynth.survey.files import write_frame, write_json, write_parts

MOST_RECORDS = 2_000_000
"""The most records whose bounds are plotted and summarised individually."""
CONTENTS = (("bounds", "Bounds and weights α"), ("fit", "Fit and calibration"))


@outlined
@dataclass(frozen=True, eq=False)
class CalibrationEvidence:
    """What the disclosure review is shown of a calibration."""

    calibration: Calibration

    @property
    def complaints(self) -> tuple[str, ...]:
        """The failed diagnostics of the final fit."""
        return self.calibration.fit.verdict.warnings

    def summary(self) -> Rows:
        """Whether the diagnostics passed, and how much of the target was used."""
        share = percent(self.calibration.largest_bound / self.calibration.target, 1)
        complaints = self.calibration.fit.verdict.complaints
        return [
            ("Diagnostics", "; ".join(complaints) or "passed"),
            ("Largest weighted bound", f"{self.calibration.largest_bound:.4g}, {share} of the target"),
        ]

    def sections(self) -> Sequence[Section]:
        """The sections on bounds and weights, and on diagnostics and trials."""
        plotted = _Plotted.of(self.calibration)
        content = {
            "bounds": _bounds_plot(plotted),
            "bounds_facts": _bounds_facts(plotted),
            "alpha": _alpha_plot(plotted.alpha),
            "alpha_facts": _alpha_facts(plotted.alpha),
            "diagnostics": _diagnostics(self.calibration),
            "trials": _trials(self.calibration),
        }
        return [Section(CONTENTS, "calibration.html", content)]

    def write(self, folder: Path) -> None:
        """Write diagnostics.json, records.parquet and calibration.csv."""
        _write_calibration(folder, self.calibration)


# --- bounds and weights ---


@outlined
@dataclass(frozen=True, eq=False)
class _Plotted:
    """The bounds and weights of all records, or of a random sample of MOST_RECORDS if there are more."""

    calibration: Calibration
    bounds: Floats
    weighted: Floats
    alpha: Floats

    @classmethod
    def of(cls, calibration: Calibration) -> _Plotted:
        columns = calibration.bounds, calibration.weighted_bounds, calibration.fit.alpha
        size = len(calibration.bounds)
        if size <= MOST_RECORDS:
            return cls(calibration, *(np.asarray(column) for column in columns))
        some = np.sort(Streams.seeded(0).generator("report").integers(0, size, MOST_RECORDS))
        return cls(calibration, *(column.take(some) for column in columns))


def _bounds_plot(plotted: _Plotted) -> Plot:
    calibration, finite = plotted.calibration, plotted.bounds[np.isfinite(plotted.bounds)]
    alt = (
        f"Violin plots of the records’ bounds: unweighted up to {finite.max():.3g}, weighted up to "
        f"{calibration.largest_bound:.3g}; the target is {calibration.target:.3g}."
    )
    groups = {"groups": [finite, plotted.weighted], "names": ["unweighted, α = 1", "weighted by α"]}
    target = {"line": calibration.target, "line_name": f"target {calibration.target:.3g}"}
    return Plot("violins", groups | {"axis": "bound of a record", "alt": alt} | target)


def _bounds_facts(plotted: _Plotted) -> Rows:
    calibration, m = plotted.calibration, plotted.calibration.datasets
    found = summarize_bounds(calibration.bounds, calibration.fit.records.engine)
    finite = np.isfinite(plotted.bounds)
    shown = "" if len(finite) == len(calibration.bounds) else f" (in a random sample of {figure(len(finite))} records)"
    return [
        ("Largest bound, unweighted", f"{found.largest:.4g}, which would cost ε = {2 * found.largest * m:.4g}"),
        ("Largest bound, weighted", f"{calibration.largest_bound:.6g}"),
        ("Target, ε/(2m)", f"{calibration.target:.6g}"),
        ("Share of the target used", percent(calibration.largest_bound / calibration.target, 1)),
        (
            "Median bound",
            f"{np.median(plotted.bounds[finite]):.3g} unweighted, {np.median(plotted.weighted):.3g} weighted{shown}",
        ),
        ("Records without a finite bound", figure(int((~finite).sum())) + shown),
    ]


def _alpha_plot(alpha: Floats) -> Plot:
    alt = f"Histogram of the weights α; their median is {np.median(alpha):.2f}."
    return Plot("histogram", {"values": alpha, "low": 0.0, "high": 1.0, "axis": "weight α", "alt": alt})


def _alpha_facts(alpha: Floats) -> Rows:
    low, middle, high = np.quantile(alpha, [0.05, 0.5, 0.95])
    return [
        ("Smallest, median, largest", f"{alpha.min():.3g}, {middle:.3g}, {alpha.max():.3g}"),
        ("5% and 95% quantile", f"{low:.3g}, {high:.3g}"),
        ("Records with full weight, α = 1", percent(float(np.mean(alpha == 1)), 1)),
        ("Records left out, α = 0", figure(int((alpha == 0).sum()))),
        ("Sum of α over records", percent(float(alpha.mean()), 1)),
    ]


# --- diagnostics of the fit ---


def _diagnostics(calibration: Calibration) -> list[tuple[str, str, str, bool]]:
    verdict = calibration.fit.verdict
    return [
        ("R-hat, largest", f"{verdict.rhat:.4f}", f"below {LARGEST_RHAT}", verdict.rhat < LARGEST_RHAT),
        (
            "Effective draws, bulk",
            figure(verdict.ess_bulk),
            f"at least {SMALLEST_ESS:.0f}",
            verdict.ess_bulk >= SMALLEST_ESS,
        ),
        (
            "Effective draws, tails",
            figure(verdict.ess_tail),
            f"at least {SMALLEST_ESS:.0f}",
            verdict.ess_tail >= SMALLEST_ESS,
        ),
        ("Divergences", figure(verdict.divergences), "none", verdict.divergences == 0),
        ("E-BFMI, smallest", f"{verdict.ebfmi:.2f}", f"at least {SMALLEST_EBFMI}", verdict.ebfmi >= SMALLEST_EBFMI),
    ]


def _trials(calibration: Calibration) -> Rows:
    """Every refit: its constant, its largest weighted bound, and this bound as a share of the target."""
    return [
        (
            figure(number),
            f"{trial.constant:.6g}" if np.isfinite(trial.constant) else "no weights needed",
            f"{trial.largest_bound:.6g}",
            percent(trial.largest_bound / calibration.target, 1),
        )
        for number, trial in enumerate(calibration.trials, start=1)
    ]


# --- files ---


def _write_calibration(folder: Path, calibration: Calibration) -> None:
    figures = _figures(calibration.fit.verdict) | {
        "target": calibration.target,
        "largest_bound": calibration.largest_bound,
        "unweighted_largest_bound": _largest(calibration.bounds, calibration.fit.records.engine),
    }
    write_json(folder / "diagnostics.json", figures)
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
