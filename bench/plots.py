"""Draws the pictures of docs/benchmarks.md: seconds and peak memory by number of records, with a line for each tool."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from measuring import SIZES, Row

LOOKS = {
    "svysynth": ("#0072B2", "o"),
    "svy": ("#009E73", "s"),
    "R survey": ("#D55E00", "^"),
    "NumPyro": ("#009E73", "s"),
    "rstan": ("#D55E00", "^"),
}
"""Colours that differ in every kind of colour vision (Okabe and Ito), and markers that differ without colour."""
GREY = "#666666"
INPUT_BYTES = 32
"""The bytes of a record: outcome and weight as doubles, two public columns."""
STYLE = {"svg.hashsalt": "svysynth", "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left"}
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def draw_tables(rows: list[Row], path: Path) -> None:
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        _tools(panels, rows, "A 27-cell set of tables")
        _save(figure, path)


def draw_fits(rows: list[Row], path: Path) -> None:
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(2, 2, figsize=(9, 6.8), layout="constrained", sharex=True)
        for panels, model in zip(grid, ("fbs", "fbp"), strict=True):
            _tools(panels, [row for row in rows if row["model"] == model], f"One fit of {model.upper()}")
        for axes in grid[0]:
            axes.set_xlabel("")
        _save(figure, path)


def draw_releases(rows: list[Row], path: Path) -> None:
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        sizes = [int(row["records"]) for row in rows]
        left.plot(sizes, [float(row["seconds"]) for row in rows], "o-", color=LOOKS["svysynth"][0])
        right.plot(sizes, [float(row["peak_mib"]) for row in rows], "o-", color=LOOKS["svysynth"][0])
        columns = [(size, INPUT_BYTES * size / 2**20) for size in sizes if size >= SIZES[3]]
        right.plot(*zip(*columns, strict=True), ":", color=GREY)
        place = {"textcoords": "offset points", "ha": "right", "va": "center", "color": GREY}
        right.annotate("the input columns, 8 bytes a value", columns[1], (-8, 5), **place)
        _finish(left, "A release from files: time", "seconds")
        _finish(right, "A release from files: peak memory", "MiB")
        _save(figure, path)


def _tools(panels: tuple[Axes, Axes], rows: list[Row], name: str) -> None:
    """Draw one panel of seconds and one of peak memory."""
    for axes, column, what, unit in zip(
        panels, ("seconds", "peak_mib"), ("time", "peak memory"), ("seconds", "MiB"), strict=True
    ):
        for tool in dict.fromkeys(row["tool"] for row in rows):
            color, marker = LOOKS[tool]
            points = [(int(row["records"]), float(row[column])) for row in rows if row["tool"] == tool and row[column]]
            if points:
                axes.plot(*zip(*points, strict=True), color=color, marker=marker)
                # the lowest line has space for its label on the right, the other lines have it above
                place, side = ((7, -1), "left") if tool == "svysynth" else ((0, 9), "center")
                axes.annotate(tool, points[-1], place, textcoords="offset points", va="center", ha=side, color=color)
        _finish(axes, f"{name}: {what}", unit)
        axes.set_xlim(SIZES[0] / 2.5, SIZES[-1] * 12)


def _finish(axes: Axes, title: str, unit: str) -> None:
    low, high = axes.dataLim.intervaly
    decades = (10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(2 * high)))
    axes.set(xscale="log", yscale="log", title=title, xlabel="records", ylabel=unit, ylim=decades)
    axes.set_xticks(sorted({int(size) for line in axes.lines for size in line.get_xdata()}))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_power))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _power(value: float, _: int) -> str:
    return "10" + f"{value:.0e}".split("e")[1].lstrip("+0").translate(SUPERSCRIPTS)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
