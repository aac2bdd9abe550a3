"""What wrong public constants cost, as a picture: standard errors against the guess, clamping against the bounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from svysynth.report.plots import COLOURS, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORST = 8.0
"""The largest growth of standard errors that is drawn."""
LEAST = 1e-5
"""The smallest share that is drawn."""
STYLES = ("-", "--", ":", "-.")


def draw_sensitivity(guesses: pl.DataFrame, bounds: pl.DataFrame, width: float, path: Path, note: str) -> None:
    """Two panels: `by_guess` over a fine grid of factors, and the outcome's `by_bounds` over a fine grid of reaches.

    `width` is the ε/m that was asked for, whose line is thicker.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.2, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_guesses(left, guesses, width)
    _draw_bounds(right, bounds.filter(pl.col("variable") == "outcome").drop_nulls("reach"))
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.yaxis.set_minor_formatter(lambda *_: "")
    figure.supxlabel(note, fontsize=8, color=MUTED)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def _draw_guesses(axes: Axes, guesses: pl.DataFrame, asked: float) -> None:
    for number, ((width,), line) in enumerate(guesses.sort("width").group_by("width", maintain_order=True)):
        style, colour = STYLES[number % len(STYLES)], COLOURS[number % len(COLOURS)]
        growth = line["standard_error_factor"].clip(upper_bound=10 * WORST)
        thick, mark = (2.6, " (asked for)") if width == asked else (1.4, "")
        label = f"ε/m = {width:.4g}{mark}"
        axes.plot(line["truth_over_guess"], growth, style, color=colour, linewidth=thick, label=label)
    axes.axvline(1, color=INK, linewidth=0.8)
    worst = max(map(float, guesses["standard_error_factor"]))
    axes.set(xscale="log", yscale="log")
    axes.set(title="A guess of the spreads that is off", xlabel="true √|Σ| over the guess")
    axes.set_ylabel("standard errors grow by 1/√(s·p)")
    axes.set_xticks([0.4, 0.63, 1, 1.6, 2.5])
    axes.set_yticks([1, 1.2, 1.5, 2, 3, 5, 8])
    axes.set_ylim(0.96, min(WORST, max(1.1 * worst, 2.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(frameon=False)


def _draw_bounds(axes: Axes, bounds: pl.DataFrame) -> None:
    lines = {
        "records clamped": bounds["share_below"] + bounds["share_above"],
        "mean of clamped values is off by": bounds["bias_of_mean"].abs(),
        "mean of a law fitted to them is off by": bounds["bias_of_model"].abs(),
    }
    for number, (name, values) in enumerate(lines.items()):
        axes.plot(bounds["reach"], values, STYLES[number], color=COLOURS[number], label=name)
    axes.set(yscale="log", ylim=(LEAST, 1), title="Bounds of the outcome that cut into the data")
    axes.set(xlabel="bounds, in spreads from the middle", ylabel="share")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.legend(frameon=False)
