"""The internal report of a release, for disclosure review. It shows confidential results throughout.

The plots are the paper's: outcome against weight in the sample and in a synthetic file (§3.2, §4.2 and the supplement),
and the utility of every cell (§3.3). What is particular to one mechanism comes as its `Evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from svysynth.core.engine import block_slices
from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.whole import Spec
from svysynth.core.transforms import Transform
from svysynth.estimation.combining import UNSMOOTHED, Synthetic
from svysynth.estimation.layout import NOTHING, decimals, figure, percent
from svysynth.mechanisms.base import Evidence, Plot, Rows, Section
from svysynth.mechanisms.model_fit import Misfit
from svysynth.mechanisms.suitability import Examined
from svysynth.privacy.accounting import epsilon_text
from svysynth.privacy.budgets import BudgetState
from svysynth.privacy.guarantee import NOT_DIFFERENTIAL_PRIVACY
from svysynth.privacy.release import Release
from svysynth.publishing.lookalikes import EXTREMES, NEAR, LookAlikes, look_alikes
from svysynth.publishing.report.page import render, render_part
from svysynth.publishing.report.plots import (
    Image,
    answer_of,
    chosen,
    draw_plot,
    scatters,
    statistic_name,
    thinned,
    violins,
)
from svysynth.publishing.verdict import ReleaseVerdict
from svysynth.survey.columns import ALL
from svysynth.survey.survey import Survey

INTERNAL = "INTERNAL: shows confidential results. Do not share it."
MOST_ROWS_SHOWN = 500
MOST_MISSED = 10
"""How many of the figures that the model misses most are shown."""


def internal_page(
    release: Release,
    survey: Survey,
    synthetic: Synthetic,
    review: Review,
    evidence: Evidence,
) -> str:
    """`report.html` of the internal folder; what is particular to one mechanism comes as its evidence."""
    comparisons = _compare(review.compared, release.spec)
    alike = look_alikes(survey, synthetic.surveys) if survey.scratch is None else None
    sections = evidence.sections()
    return render(
        "internal.html",
        internal=INTERNAL,
        title=release.title,
        seeded=release.seeded,
        verdict=review.verdict,
        **{"global": release.guarantee.kind == "global"},
        summary=_summary(release, comparisons, alike, evidence, review.budget),
        misfit=_misfit(review.examined.misfit),
        misfit_rows=_misfit_rows(review.examined.misfit),
        contents=[section.contents for section in sections],
        sections=list(map(render_section, sections)),
        smoothed=bool(synthetic.surveys) and UNSMOOTHED in synthetic.surveys[0].schema,
        scatter=_scatter(survey, synthetic, release.spec.survey.transform) if synthetic.surveys else None,
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


# --- the model's own fit ---


def _misfit(misfit: Misfit | None) -> Rows:
    """How well the model fits without any protection."""
    if misfit is None:
        return []
    off = misfit.tables["off"].drop_nulls().abs()
    weights = "public, or constant" if misfit.weight_distance is None else percent(misfit.weight_distance, 1)
    return [
        ("Largest distance from the model’s distribution, outcome", percent(misfit.distance, 1)),
        ("Largest distance from the model’s distribution, log weights", weights),
        ("Figures more than 3 direct standard errors off", f"{int((off > 3).sum())} of {len(off)}"),
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


def _scatter(survey: Survey, synthetic: Synthetic, transform: Transform) -> Image:
    """Outcome against weight: confidential, as the model drew them, and smoothed."""
    first = synthetic.surveys[0]
    some, drawn = chosen(len(survey)), chosen(len(first))
    total = np.sum([first.weights[piece].sum() for piece in block_slices(range(len(first)))])
    scale = total / np.sum([survey.weights[piece].sum() for piece in block_slices(range(len(survey)))])
    y = first.outcome_values.take(drawn)
    panels = [("Confidential sample", survey.outcome_values.take(some), survey.weights.take(some) * scale)]
    if UNSMOOTHED in first.schema:
        panels += [
            ("Synthetic, weights as drawn", y, first.values(UNSMOOTHED).take(drawn)),
            ("Synthetic, weights smoothed", y, first.weights.take(drawn)),
        ]
        alt = "Outcome against weight in the confidential sample, and in synthetic file 1 as drawn and smoothed."
    else:
        panels.append(("Synthetic", y, first.weights.take(drawn)))
        alt = "Outcome against weight in the confidential sample, and in synthetic file 1."
    return scatters(panels, survey.outcome, "weight", alt, log=transform == "log", highlight=0)


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


def _compare(compared: pl.DataFrame, spec: Spec) -> list[_Comparison]:
    by = compared.columns[2 : compared.columns.index("estimate")]
    groups = compared.group_by("table", "statistic", maintain_order=True)
    return [
        _comparison(number, str(title), str(statistic), by, rows, answer_of(str(title), spec))
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
    drawn = [thinned(ratio) for ratio in ratios]
    return violins(drawn, names, "RMSE / confidential SE", alt, line=1.0, line_name="as accurate as the sample")


def render_section(section: Section) -> str:
    """The part of the page from one mechanism, with its plots drawn."""
    plots = {name: draw_plot(plot) for name, plot in section.content.items() if isinstance(plot, Plot)}
    return render_part(section.template, **{**section.content, **plots})


def _summary(
    release: Release,
    comparisons: Sequence[_Comparison],
    alike: LookAlikes | None,
    evidence: Evidence,
    budget: BudgetState | None,
) -> Rows:
    guarantee = release.guarantee
    kind = f"{NOT_DIFFERENTIAL_PRIVACY}: asymptotic" if guarantee.kind == "asymptotic" else guarantee.kind
    found: Rows = [("Privacy loss promised", f"ε = {guarantee.charged:g}. {kind[0].upper()}{kind[1:]}")]
    if budget is not None:
        spent, total = epsilon_text(budget.spent), epsilon_text(budget.total)
        found.append(("Share of the budget used", f"{percent(budget.spent / budget.total, 1)}: ε = {spent} of {total}"))
    found += evidence.summary()
    for one in comparisons:
        if len(one.ratio) and len(one.overlap):
            middle = f"RMSE ratio {np.median(one.ratio):.2f}, interval overlap {np.median(one.overlap):.2f}"
            found.append((f"{one.title}: {one.name}", f"medians over cells: {middle}"))
    if alike is not None:
        against = "" if alike.expected is None else f", {percent(alike.expected, 1)} expected by chance"
        found.append(("Extreme records with a look-alike in a file", f"{percent(alike.share, 1)}{against}"))
    return found
