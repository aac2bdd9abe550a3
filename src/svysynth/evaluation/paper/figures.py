"""The figures of the paper and its supplement, as SVG and PNG, with the numbers of a study run here.

FBP with full smoothing is added where the paper compares methods. Figures with Laplace noise have a logarithmic axis,
because the errors of Laplace noise are many times those of the other methods. The same numbers give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from svysynth.core.grouping import Floats
from svysynth.core.hidden_folders import appearing
from svysynth.evaluation.paper.methods import NAMES, Method

COLORS: dict[str, str] = {
    "sample": "#009E73",
    "fbs": "#D98E04",
    "fbp": "#0072B2",
    "fbp-full": "#AA4499",
    "laplace": "#777777",
    "unweighted": "#BBBBBB",
}
MARKERS = {"fbs": "o", "fbp": "s", "fbp-full": "^"}
STATISTICS = {"count": "Counts", "mean": "Average salary"}
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "legend.frameon": False,
    "svg.hashsalt": "svysynth",
    "svg.fonttype": "path",
}
NOMINAL = 0.95
MANY_DECADES = 2.5
"""A logarithmic axis of fewer decades has marks at 2 and 5 times the powers of ten too."""
SHORT_NAMES: dict[Method, str] = NAMES | {"fbp-full": "FBP,\nfull\nsmoothing"}


def save_figure(figure: Figure, folder: Path, name: str, banner: str | None = None) -> None:
    """Write a figure as NAME.svg and NAME.png, with the banner above it if there is one."""
    if banner:
        figure.suptitle(banner, color="#8a1020", fontweight="bold")
    title = {"Title": banner} if banner else {}
    for ending, metadata in (("svg", {"Date": None, **title}), ("png", title)):
        with matplotlib.rc_context(STYLE), appearing(folder / f"{name}.{ending}") as temporary:
            figure.savefig(temporary, format=ending, dpi=160, metadata=metadata)


def bounds_figure(bounds: pl.DataFrame) -> Figure:
    """Bounds of the records without and with the weights α, a panel for each model (figures 1 and 3)."""
    with matplotlib.rc_context(STYLE):
        models = bounds["model"].unique(maintain_order=True).to_list()
        figure, panels = _panels(len(models), sharey=True)
        for axes, model in zip(panels, models, strict=True):
            own = bounds.filter(model=model)
            values = [own.filter(weighting=kind)["bound"].to_numpy() for kind in ("unweighted", "weighted")]
            _violins(axes, values, [COLORS["unweighted"], COLORS[model]], points=False)
            for position, value in enumerate(values, start=1):
                axes.annotate(
                    f"largest {value.max():.2f}",
                    (position, value.max()),
                    (0, 4),
                    textcoords="offset points",
                    ha="center",
                )
            axes.set_xticks([1, 2], ["unweighted", "weighted"])
            axes.set_title(model.upper())
        panels[0].set_ylabel("Lipschitz bound of a record")
        panels[0].set_ylim(bottom=0)
        return figure


def scatter_figure(points: pl.DataFrame, panels: Sequence[tuple[str, Method, str]]) -> Figure:
    """Scatter plots of weight against salary (figures 4, S1 and S2); a panel is (title, method, weights)."""
    with matplotlib.rc_context(STYLE):
        figure, axes_of = _panels(len(panels), sharex=True, sharey=True)
        for axes, (title, method, weights) in zip(axes_of, panels, strict=True):
            own = points.filter(method=method, weights=weights)
            salary = own["salary"].to_numpy() / 1000
            axes.scatter(salary, own["weight"].to_numpy(), s=6, alpha=0.5, color=COLORS[method], lw=0, rasterized=True)
            axes.set_title(title)
            axes.set_xlabel("Salary, thousands of dollars")
        axes_of[0].set_ylabel("Weight")
        axes_of[0].set_xlim(left=0)
        axes_of[0].set_ylim(bottom=0)
        return figure


def rmse_figure(cells: pl.DataFrame, column: str, methods: Sequence[Method], *, logarithmic: bool) -> Figure:
    """RMSE, or its ratio to the sample's, in 27 cells; counts on the left, salaries on the right (figures 2 and 5)."""
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(2)
        for axes, (statistic, title) in zip(panels, STATISTICS.items(), strict=True):
            values = [_finite(cells.filter(statistic=statistic, method=method)[column]) for method in methods]
            _method_violins(axes, values, methods, logarithmic=logarithmic, line=column == "rmse_ratio")
            axes.set_title(title)
        panels[0].set_ylabel("RMSE ratio to the sample" if column == "rmse_ratio" else "RMSE")
        return figure


def trade_off_figure(cells: pl.DataFrame, methods: Sequence[Method], scenarios: Sequence[tuple[int, float]]) -> Figure:
    """RMSE ratios of counts (top) and salaries (bottom) for several pairs (m, ε) (figures 6 and 7)."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.0 * len(scenarios) + 0.6, 6.2), layout="constrained")
        grid = figure.subplots(2, len(scenarios), sharey="row", squeeze=False)
        for row, (statistic, title) in enumerate(STATISTICS.items()):
            for axes, (m, epsilon) in zip(grid[row], scenarios, strict=True):
                own = cells.filter(pl.col("datasets") == m, pl.col("epsilon") == epsilon, statistic=statistic)
                values = [_finite(own.filter(method=method)["rmse_ratio"]) for method in methods]
                _method_violins(axes, values, methods, logarithmic=False, line=True)
                axes.set_title(f"m = {m}, ε = {epsilon:g}")
            grid[row][0].set_ylabel(f"{title}: RMSE ratio")
            grid[row][0].set_ylim(bottom=0)
        return figure


def coverage_figure(summary: pl.DataFrame, methods: Sequence[Method]) -> Figure:
    """CV against coverage in 24 cells; counts on the left, salaries on the right (figures S3 to S10)."""
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(2)
        lowest = min(0.3, float(summary["coverage"].min() or 0) - 0.02)  # type: ignore[arg-type]
        for axes, (statistic, title) in zip(panels, STATISTICS.items(), strict=True):
            axes.axvline(NOMINAL, color="#CC0000", ls="--", lw=1)
            for method in methods:
                own = summary.filter(statistic=statistic, method=method)
                axes.scatter(
                    own["coverage"].to_numpy(),
                    own["cv"].to_numpy(),
                    s=24,
                    alpha=0.75,
                    lw=0,
                    color=COLORS[method],
                    marker=MARKERS[method],
                    label=NAMES[method],
                )
            axes.set_xlim(lowest, 1.02)
            axes.set_ylim(bottom=0)
            axes.set_title(title)
            axes.set_xlabel(f"Coverage of {NOMINAL:.0%} intervals")
        panels[0].set_ylabel("Coefficient of variation")
        panels[0].legend(loc="upper left")
        return figure


def _panels(count: int, **shared: Any) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(3.3 * count + 0.6, 3.5), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, count, **shared)))


def _method_violins(
    axes: Axes, values: Sequence[Floats], methods: Sequence[Method], *, logarithmic: bool, line: bool
) -> None:
    _violins(axes, [np.log10(value) if logarithmic else value for value in values], [COLORS[m] for m in methods])
    if line:
        axes.axhline(0 if logarithmic else 1, color="#CC0000", ls="--", lw=1)
    if logarithmic:
        low, high = axes.get_ylim()
        steps = np.log10([1, 2, 5] if high - low < MANY_DECADES else [1])
        places = np.add.outer(np.arange(np.floor(low), np.ceil(high)), steps).ravel()
        axes.yaxis.set_major_locator(FixedLocator([place for place in places if low <= place <= high]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(10.0**value, 6):,.10g}"))
        axes.set_ylim(low, high)
    axes.set_xticks(range(1, len(methods) + 1), [SHORT_NAMES[method] for method in methods])


def _violins(axes: Axes, values: Iterable[Floats], colors: Sequence[str], *, points: bool = True) -> None:
    """Violins with the median marked and, unless `points` is false, the points themselves."""
    for position, (value, color) in enumerate(zip(values, colors, strict=True), start=1):
        parts: Mapping[str, Any] = axes.violinplot(value, [position], widths=0.8, showextrema=False, points=200)
        for body in parts["bodies"]:
            body.set(facecolor=color, edgecolor=color, alpha=0.45)
        if points:
            place = position + 0.05 * np.cos(np.pi * np.arange(len(value)))
            axes.scatter(place, value, s=7, color=color, lw=0)
        axes.hlines(np.median(value), position - 0.18, position + 0.18, color="black", lw=1.2)


def _finite(values: pl.Series) -> Floats:
    return values.filter(values.is_finite()).to_numpy()
