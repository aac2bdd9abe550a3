"""The internal report of a release: what a disclosure review looks at. It shows confidential results throughout.

The plots are the paper's: record bounds without and with the weights α, outcome against weight in the sample and in a
synthetic file (§3.2, §4.2 and the supplement), and the utility of every cell (§3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from svysynth.accounting import epsilon_text
from svysynth.budgets import BudgetState
from svysynth.calibration import Calibration
from svysynth.columns import ALL
from svysynth.combine import Synthetic
from svysynth.diagnostics import LARGEST_RHAT, SMALLEST_EBFMI, SMALLEST_ESS
from svysynth.engine import block_slices
from svysynth.groups import Floats, Integers
from svysynth.guarantee import NOT_DIFFERENTIAL_PRIVACY
from svysynth.lipschitz import summarize_bounds
from svysynth.lookalikes import EXTREMES, NEAR, LookAlikes, look_alikes
from svysynth.misfit import Misfit
from svysynth.outline import outlined
from svysynth.releases import Release
from svysynth.report.page import NOTHING, figure, percent, render
from svysynth.report.plots import Image, histogram, scatters, statistic_name, violins
from svysynth.report.wide import decimals
from svysynth.streams import Streams
from svysynth.suitability import Examined
from svysynth.survey import Survey
from svysynth.synthesis import UNSMOOTHED
from svysynth.verdict import ReleaseVerdict

INTERNAL = "INTERNAL: shows confidential results. It must never leave the house."
MOST_POINTS = 20_000
MOST_RECORDS = 2_000_000
"""Records whose bounds are looked at one by one."""
MOST_ROWS_SHOWN = 500
MOST_MISSED = 10
"""Figures shown of those that the model misses most."""

Rows = list[tuple[str, ...]]


def internal_page(
    release: Release,
    survey: Survey,
    synthetic: Synthetic,
    review: Review,
    calibration: Calibration | None,
) -> str:
    """`report.html` of the internal folder; additive noise has neither calibration nor synthetic surveys."""
    comparisons = _compare(review.compared, release.spec.survey.outcome)
    alike = look_alikes(survey, synthetic.surveys) if survey.scratch is None else None
    plotted = _Plotted.of(calibration)
    return render(
        "internal.html",
        internal=INTERNAL,
        title=release.title,
        seeded=release.seeded,
        verdict=review.verdict,
        **{"global": release.guarantee.kind == "global"},
        summary=_summary(release, comparisons, alike, calibration, review.budget),
        noise=_noise(release),
        misfit=_misfit(review.examined.misfit),
        misfit_rows=_misfit_rows(review.examined.misfit),
        bounds=None if plotted is None else _bounds_plot(plotted),
        bounds_facts=[] if plotted is None else _bounds_facts(plotted),
        alpha=None if plotted is None else _alpha_plot(plotted.alpha),
        alpha_facts=[] if plotted is None else _alpha_facts(plotted.alpha),
        scatter=_scatter(survey, synthetic) if synthetic.surveys else None,
        diagnostics=[] if calibration is None else _diagnostics(calibration),
        trials=[] if calibration is None else _trials(calibration),
        utility=_utility_plot(comparisons),
        comparisons=comparisons,
        alike=alike,
        extremes=EXTREMES,
        near=percent(NEAR),
        created=release.created.isoformat(),
    )


@outlined
@dataclass(frozen=True, eq=False)
class Review:
    """What the confidential data say of a release: the evidence behind the verdict, and the verdict."""

    compared: pl.DataFrame
    """Released beside direct (`verdict.beside`)."""
    examined: Examined
    verdict: ReleaseVerdict
    budget: BudgetState | None = None
    """The budget after the charge; None where nothing was charged."""


# --- the model's own fit, and noise ---


def _misfit(misfit: Misfit | None) -> Rows:
    """How well the model fits with no privacy at all."""
    if misfit is None:
        return []
    off = misfit.tables["off"].drop_nulls().abs()
    weights = "public, or constant" if misfit.weight_distance is None else percent(misfit.weight_distance, 1)
    return [
        ("Largest distance from the model’s distribution, outcome", percent(misfit.distance, 1)),
        ("The same, log weights", weights),
        ("Figures 3 or more direct standard errors off", f"{int((off > 3).sum())} of {len(off)}"),
        ("Largest difference", f"{off.to_numpy().max():.1f} direct standard errors" if len(off) else NOTHING),
    ]


def _misfit_rows(misfit: Misfit | None) -> Rows:
    """The figures that the model misses most."""
    if misfit is None:
        return []
    worst = misfit.tables.filter(pl.col("off").is_not_null()).sort(pl.col("off").abs(), descending=True)
    labels = worst.columns[2 : worst.columns.index("estimate")]
    return [
        (
            row["statistic"],
            ", ".join(str(row[column]) for column in labels if row[column] != ALL) or ALL,
            *(figure(row[name], decimals([row["estimate"]], row["statistic"])) for name in ("estimate", "se", "model")),
            figure(row["off"], 1),
        )
        for row in worst.head(MOST_MISSED).iter_rows(named=True)
    ]


def _noise(release: Release) -> Rows:
    """Of additive noise: how the budget was split, and how much of each standard error it makes up."""
    tables = release.tables
    if "se_privacy" not in tables.columns:
        return []
    share = (pl.col("se_privacy") / pl.col("se")) ** 2
    found = (
        tables.filter(pl.col("se") > 0).group_by("statistic", maintain_order=True).agg(share.median().alias("share"))
    )
    return [
        *((f"Share of the variance that is noise, {name}, median", percent(part)) for name, part in found.iter_rows()),
        *((f"Note {number}", note) for number, note in enumerate(release.notes, start=1)),
    ]


# --- bounds and weights ---


@outlined
@dataclass(frozen=True, eq=False)
class _Plotted:
    """Bounds and weights of all records, or of as many as are enough where there are very many."""

    calibration: Calibration
    bounds: Floats
    weighted: Floats
    alpha: Floats

    @classmethod
    def of(cls, calibration: Calibration | None) -> _Plotted | None:
        if calibration is None:
            return None
        columns = calibration.bounds, calibration.weighted_bounds, calibration.fit.alpha
        size = len(calibration.bounds)
        if size <= MOST_RECORDS:
            return cls(calibration, *(np.asarray(column) for column in columns))
        some = np.sort(Streams.seeded(0).generator("report").integers(0, size, MOST_RECORDS))
        return cls(calibration, *(column.take(some) for column in columns))


def _thinned(values: Floats) -> Floats:
    """At most so many values as a plot can show, the largest among them."""
    if len(values) <= MOST_POINTS:
        return values
    return np.append(values[_chosen(len(values))], values.max())


def _chosen(size: int) -> Integers:
    """The records that a plot shows, the same each time."""
    if size <= MOST_POINTS:
        return np.arange(size)
    return Streams.seeded(0).generator("report").choice(size, MOST_POINTS, replace=False)


def _bounds_plot(plotted: _Plotted) -> Image:
    calibration, finite = plotted.calibration, plotted.bounds[np.isfinite(plotted.bounds)]
    return violins(
        [_thinned(finite), _thinned(plotted.weighted)],
        ["unweighted, α = 1", "weighted by α"],
        "bound of a record",
        f"Violin plots of the records’ bounds: unweighted up to {finite.max():.3g}, weighted up to "
        f"{calibration.largest_bound:.3g}; the target is {calibration.target:.3g}.",
        line=calibration.target,
        line_name=f"target {calibration.target:.3g}",
    )


def _bounds_facts(plotted: _Plotted) -> Rows:
    calibration, m = plotted.calibration, plotted.calibration.datasets
    found = summarize_bounds(calibration.bounds, calibration.fit.records.engine)
    finite = np.isfinite(plotted.bounds)
    shown = "" if len(finite) == len(calibration.bounds) else f" (of {figure(len(finite))} records drawn at random)"
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


def _alpha_plot(alpha: Floats) -> Image:
    alt = f"Histogram of the weights α; their median is {np.median(alpha):.2f}."
    return histogram(alpha, 0.0, 1.0, "weight α", alt)


def _alpha_facts(alpha: Floats) -> Rows:
    low, middle, high = np.quantile(alpha, [0.05, 0.5, 0.95])
    return [
        ("Smallest, median, largest", f"{alpha.min():.3g}, {middle:.3g}, {alpha.max():.3g}"),
        ("5% and 95% quantile", f"{low:.3g}, {high:.3g}"),
        ("Records with full weight, α = 1", percent(float(np.mean(alpha == 1)), 1)),
        ("Records left out, α = 0", figure(int((alpha == 0).sum()))),
        ("Sum of α over records", percent(float(alpha.mean()), 1)),
    ]


def _scatter(survey: Survey, synthetic: Synthetic) -> Image:
    """Outcome against weight: confidential, as the model drew them, and smoothed."""
    first, some = synthetic.surveys[0], _chosen(len(survey))
    total = np.sum([first.weights[piece].sum() for piece in block_slices(range(len(first)))])
    scale = total / np.sum([survey.weights[piece].sum() for piece in block_slices(range(len(survey)))])
    y = first.outcome_values.take(some)
    panels = [
        ("Confidential sample", survey.outcome_values.take(some), survey.weights.take(some) * scale),
        ("Synthetic, weights as drawn", y, first.values(UNSMOOTHED).take(some)),
        ("Synthetic, weights smoothed", y, first.weights.take(some)),
    ]
    alt = "Outcome against weight in the confidential sample, in synthetic file 1 as drawn, and with smoothed weights."
    return scatters(panels, survey.outcome, "weight", alt, log=survey.transform == "log", highlight=0)


# --- how the fit went ---


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
    """Every refit: its constant, the largest bound it gave, and how far from the target."""
    return [
        (
            figure(number),
            f"{trial.constant:.6g}" if np.isfinite(trial.constant) else "no weights needed",
            f"{trial.largest_bound:.6g}",
            percent(trial.largest_bound / calibration.target, 1),
        )
        for number, trial in enumerate(calibration.trials, start=1)
    ]


# --- utility, cell by cell ---


@outlined
@dataclass(frozen=True, eq=False)
class _Comparison:
    """A statistic of a table, released beside confidential."""

    number: int
    title: str
    statistic: str
    name: str
    by: tuple[str, ...]
    places: int
    rows: list[dict[str, object]]
    left_out: int
    ratio: Floats
    overlap: Floats


def _compare(compared: pl.DataFrame, outcome: str) -> list[_Comparison]:
    by = compared.columns[2 : compared.columns.index("estimate")]
    groups = compared.group_by("table", "statistic", maintain_order=True)
    return [
        _comparison(number, str(title), str(statistic), by, rows, outcome)
        for number, ((title, statistic), rows) in enumerate(groups, start=1)
    ]


def _comparison(
    number: int, title: str, statistic: str, columns: Sequence[str], rows: pl.DataFrame, outcome: str
) -> _Comparison:
    by = tuple(column for column in columns if (rows[column] != "All").any())
    return _Comparison(
        number,
        title,
        statistic,
        statistic_name(statistic, outcome),
        by,
        decimals(rows["estimate"].to_list(), statistic),
        [
            row | {"labels": tuple(row[column] for column in by) or ("All",)}
            for row in rows.head(MOST_ROWS_SHOWN).iter_rows(named=True)
        ],
        max(rows.height - MOST_ROWS_SHOWN, 0),
        rows["ratio"].drop_nulls().to_numpy(),
        rows["overlap"].drop_nulls().to_numpy(),
    )


def _utility_plot(comparisons: Sequence[_Comparison]) -> Image | None:
    """Violins of the RMSE ratios over the cells of all tables, a violin for each statistic."""
    statistics = dict.fromkeys(one.statistic for one in comparisons)
    ratios = [np.concatenate([one.ratio for one in comparisons if one.statistic == name]) for name in statistics]
    if not sum(map(len, ratios)):
        return None
    alt = "Violin plots of the ratio of RMSE to the confidential standard error, over cells."
    names = [next(one.name for one in comparisons if one.statistic == name) for name in statistics]
    drawn = [_thinned(ratio) for ratio in ratios]
    return violins(drawn, names, "RMSE over the sample’s own", alt, line=1.0, line_name="as the sample")


def _summary(
    release: Release,
    comparisons: Sequence[_Comparison],
    alike: LookAlikes | None,
    calibration: Calibration | None,
    budget: BudgetState | None,
) -> Rows:
    guarantee = release.guarantee
    kind = f"{NOT_DIFFERENTIAL_PRIVACY}: asymptotic" if guarantee.kind == "asymptotic" else guarantee.kind
    found: Rows = [("Privacy loss promised", f"ε = {guarantee.epsilon_blanked:g}. {kind[0].upper()}{kind[1:]}")]
    if budget is not None:
        spent, total = epsilon_text(budget.spent), epsilon_text(budget.total)
        found.append(("Share of the budget used", f"{percent(budget.spent / budget.total, 1)}: ε = {spent} of {total}"))
    if calibration is not None:
        passed = calibration.fit.verdict.passed
        share = percent(calibration.largest_bound / calibration.target, 1)
        found.append(("Diagnostics", "passed" if passed else "; ".join(calibration.fit.verdict.complaints)))
        found.append(("Largest weighted bound", f"{calibration.largest_bound:.4g}, {share} of the target"))
    for one in comparisons:
        if len(one.ratio) and len(one.overlap):
            middle = f"RMSE ratio {np.median(one.ratio):.2f}, interval overlap {np.median(one.overlap):.2f}"
            found.append((f"{one.title}: {one.name}", f"medians over cells: {middle}"))
    if alike is not None:
        against = "" if alike.expected is None else f", {percent(alike.expected, 1)} expected by chance"
        found.append(("Extreme records with a look-alike in a file", f"{percent(alike.share, 1)}{against}"))
    return found
