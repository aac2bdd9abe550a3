"""The effect of bounds that cut into the data, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from svysynth.publishing.report.plots import COLOURS, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 1e-5
"""The smallest share that is drawn."""
STYLES = ("-", "--", ":")


def draw_bounds(bounds: pl.DataFrame, path: Path, note: str) -> None:
    """Draw the outcome's rows of `by_bounds`, made over a fine grid of reaches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.subplots()
    _draw_bounds(axes, bounds.filter(pl.col("variable") == "outcome").drop_nulls("reach"))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_minor_formatter(lambda *_: "")
    figure.supxlabel(note, fontsize=8, color=MUTED)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def _draw_bounds(axes: Axes, bounds: pl.DataFrame) -> None:
    lines = {
        "records clamped": bounds["share_below"] + bounds["share_above"],
        "mean of clamped values is off by": bounds["bias_of_mean"].abs(),
        "mean of a distribution fitted to them is off by": bounds["bias_of_model"].abs(),
    }
    for number, (name, values) in enumerate(lines.items()):
        axes.plot(bounds["reach"], values, STYLES[number], color=COLOURS[number], label=name)
    axes.set(yscale="log", ylim=(LEAST, 1), title="Bounds of the outcome that cut into the data")
    axes.set(xlabel="bounds, in spreads from the middle", ylabel="share")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.legend(frameon=False)
