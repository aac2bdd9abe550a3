"""Plots of the reports, as images that a page carries in itself: SVG in data addresses, for light and dark pages.

The same numbers give the same bytes: no dates, no random names, text measured with the font that comes with matplotlib.
Labels are text and never mathematics.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from svysynth.core.errors import shown
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.statistics import described
from svysynth.core.spec.whole import Spec
from svysynth.core.streams import Streams
from svysynth.estimation.layout import WideRow, WideTable
from svysynth.mechanisms.base import Plot
from svysynth.survey.columns import ALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b242c", "#52606d", "#dde3e8"
COLOURS = ("#0b4f8b", "#b3540e", "#2d7350", "#75489b")
MARKERS = ("o", "D", "s", "^")
ALARM = "#8a1021"
IN_THE_DARK = {
    INK: "#e4e9ee",
    MUTED: "#a6b2be",
    GRID: "#333e48",
    ALARM: "#ff9aa5",
    **dict(zip(COLOURS, ("#8cc1f5", "#f2a765", "#7fc9a2", "#c7a3e6"), strict=True)),
}
FONTS = "'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'Liberation Sans', Arial, sans-serif"
LONGEST_LABEL = 30
MOST_LABELS = 40
WIDTH, FULL_WIDTH = 4.9, 10.2
MOST_SIDE_BY_SIDE = 4
"""How many distributions a plot of the smaller width has room for."""
DOTS_PER_INCH = 96
RASTER = 200
"""Dots per inch of plots with too many points to be drawn one by one."""

MOST_POINTS = 20_000
"""The most points that a plot shows one by one."""


@dataclass(frozen=True)
class Image:
    """A picture for light pages and one for dark, as data addresses."""

    light: str
    dark: str
    alt: str
    width: int
    height: int

    @property
    def wide(self) -> bool:
        """Whether it takes the whole width of a page."""
        return self.width > round(WIDTH * DOTS_PER_INCH)


@outlined
@dataclass(frozen=True, eq=False)
class Series:
    """Estimates and their intervals, one for each label of a plot; not a number where there is none."""

    name: str
    estimate: Floats
    lower: Floats
    upper: Floats


def dot_plot(labels: Sequence[str], series: Sequence[Series], alt: str, *, from_zero: bool) -> Image:
    """Estimates as dots with their intervals, a line of them for each label."""
    step = min(0.24, 0.78 / len(series))
    with _style():
        figure, (axes,) = _panels(WIDTH, 1.0 + len(labels) * max(0.26, 0.17 * len(series) + 0.08))
        for number, one in enumerate(series):
            place = np.arange(len(labels)) + step * (number - (len(series) - 1) / 2)
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            axes.hlines(place, one.lower, one.upper, color=colour, linewidth=1.4)
            axes.plot(one.estimate, place, marker, color=colour, markersize=4, label=_short(one.name))
        axes.set_yticks(range(len(labels)), [_short(label) for label in labels])
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        if from_zero:
            axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
        _plain_numbers(axes, "x")
        if len(series) > 1:
            figure.legend(loc="outside upper left", ncols=len(series), frameon=False, handletextpad=0.3)
        return _image(figure, alt)


def answer_of(title: str, spec: Spec) -> str:
    """The label of the answer that a table with this title is of. Titles may end with what it is restricted to."""
    tables = [table for table in spec.requested_tables if title.startswith(table.title)]
    of = max(tables, key=lambda table: len(table.title)).of if tables else None
    return spec.survey.shown(of or spec.survey.outcome)


def statistic_name(statistic: str, outcome: str) -> str:
    """The name of a statistic in headings.

    >>> statistic_name("mean", "salary"), statistic_name("proportion", "salary"), statistic_name("median", "salary")
    ('Mean salary', 'Share of the population', 'Median salary')
    """
    sums = {
        "count": "Number in the population",
        "proportion": "Share of the population",
        "mean": f"Mean {outcome}",
        "total": f"Total {outcome}",
    }
    return sums.get(statistic) or described(statistic, outcome)


def plots_of_table(table: WideTable, outcome: str) -> list[tuple[str, Image]]:
    """A dot plot of each statistic, where the table is small enough to be seen at once."""
    found = []
    for position, statistic in enumerate(table.statistics):
        # Rows that are the sum of all others would leave no room for these on the axis.
        adds_up = statistic in ("count", "total", "proportion")
        rows = [row for row in table.rows if not (adds_up and row.labels[:1] == (ALL,))]
        drawn = _grouped(rows, position) or _flat(rows, position)
        if drawn is None:
            continue
        name = statistic_name(statistic, outcome)
        alt = f"{name} by {' and '.join(table.by)}, with intervals. The figures are those of the table “{table.title}”."
        found.append((name, dot_plot(*drawn, alt, from_zero=adds_up)))
    return found


Drawn = tuple[list[str], list[Series]]


def _grouped(rows: Sequence[WideRow], position: int) -> Drawn | None:
    """The first column's labels as lines and the second's as colours, where there are two and few enough."""
    if not rows or len(rows[0].labels) != 2:
        return None
    lines = list(dict.fromkeys(row.labels[0] for row in rows))
    colours = list(dict.fromkeys(row.labels[1] for row in rows))
    if len(colours) > len(COLOURS) or len(lines) > MOST_LABELS:
        return None
    return lines, [_series(colour, [row for row in rows if row.labels[1] == colour], position) for colour in colours]


def _flat(rows: Sequence[WideRow], position: int) -> Drawn | None:
    """A line for each row; where there are too many, for each label of the first column."""
    if len(rows) > MOST_LABELS:
        rows = [row for row in rows if all(label == ALL for label in row.labels[1:])]
    if not 0 < len(rows) <= MOST_LABELS or not rows[0].labels:
        return None
    return [", ".join(row.labels) for row in rows], [_series("", rows, position)]


def _series(name: str, rows: Sequence[WideRow], position: int) -> Series:
    cells = [row.estimates[position] for row in rows]
    numbers = ([cell.estimate for cell in cells], [cell.lower for cell in cells], [cell.upper for cell in cells])
    return Series(name, *(np.array(column, np.float64) for column in numbers))


def curves(edges: Floats, shares: Sequence[Floats], names: Sequence[str], axis: str, alt: str, *, log: bool) -> Image:
    """Histograms of the same classes, as lines over each other."""
    with _style():
        figure, (axes,) = _panels(WIDTH, 3.0)
        for number, (share, name) in enumerate(zip(shares, names, strict=True)):
            axes.stairs(share, edges, color=COLOURS[number % len(COLOURS)], linewidth=1.3, label=name)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(_short(axis, 60))
        axes.set_ylabel("share of the population")
        if log:
            _log_scale(axes, "x", edges[0], edges[-1])
        else:
            _plain_numbers(axes, "x")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        if len(names) > 1:
            figure.legend(loc="outside upper left", ncols=min(len(names), 4), frameon=False)
        return _image(figure, alt)


def draw_plot(plot: Plot) -> Image:
    """Draw a plot that a mechanism asks for."""
    if plot.kind == "histogram":
        return histogram(**plot.shown)
    return violins(**{**plot.shown, "groups": list(map(thinned, plot.shown["groups"]))})


def violins(
    groups: Sequence[Floats], names: Sequence[str], axis: str, alt: str, *, line: float, line_name: str
) -> Image:
    """Distributions side by side, with a line to compare them with."""
    with _style():
        width = WIDTH if len(names) <= MOST_SIDE_BY_SIDE else FULL_WIDTH
        letters = max(int(44 * width / WIDTH) // len(names), 6)
        figure, (axes,) = _panels(width, 3.4)
        axes.axhline(line, color=ALARM, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(line_name, (-0.78, line), (0, 4), textcoords="offset points", color=ALARM)
        for number, values in enumerate(groups):
            _violin(axes, values, number, COLOURS[number % len(COLOURS)])
        axes.set_xticks(range(len(names)), [textwrap.fill(_short(name, 60), letters) for name in names])
        axes.set_xlim(-0.8, len(groups) - 0.4)
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        axes.tick_params(axis="x", length=0, labelcolor=INK)
        axes.set_ylabel(axis)
        axes.grid(visible=True, axis="y")
        axes.grid(visible=False, axis="x")
        return _image(figure, alt)


def _violin(axes: Axes, values: Floats, place: int, colour: str) -> None:
    """The density of values to both sides of a place; a short line where they are all the same."""
    if len(values) == 0:
        return
    middle, top = float(np.median(values)), float(np.max(values))
    if np.ptp(values) > 1e-9 * max(abs(top), 1e-300):
        drawn: Any = axes.violinplot([values], [place], widths=0.7, showextrema=False, points=200)
        drawn["bodies"][0].set(facecolor=colour, edgecolor=colour, alpha=0.35)
    axes.hlines([middle, top], place - 0.12, place + 0.12, color=colour, linewidth=1.6)
    axes.annotate(f"{top:.3g}", (place, top), (0, 4), textcoords="offset points", color=colour, ha="center")
    axes.annotate(f"{middle:.3g}", (place + 0.38, middle), (0, -3), textcoords="offset points", color=colour)


def histogram(values: Floats, low: float, high: float, axis: str, alt: str) -> Image:
    """How many records there are in each of 40 classes."""
    with _style():
        figure, (axes,) = _panels(WIDTH, 3.4)
        count, edges = np.histogram(values, bins=40, range=(low, high))
        axes.stairs(count / max(len(values), 1), edges, fill=True, color=COLOURS[0], alpha=0.75)
        axes.set_xlabel(axis)
        axes.set_ylabel("share of records")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        axes.grid(visible=True, axis="y")
        return _image(figure, alt)


def scatters(
    panels: Sequence[tuple[str, Floats, Floats]], across: str, up: str, alt: str, *, log: bool, highlight: int
) -> Image:
    """Clouds of points with axes in common; the weights' axis is logarithmic, the outcome's where `log` says so."""
    with _style():
        figure, all_axes = _panels(FULL_WIDTH, 3.7, len(panels))
        for number, (axes, (name, x, y)) in enumerate(zip(all_axes, panels, strict=True)):
            colour = COLOURS[1] if number == highlight else COLOURS[0]
            axes.plot(x, y, ".", color=colour, markersize=2.5, alpha=0.35, markeredgewidth=0, rasterized=True)
            axes.set_title(name, fontsize=10, loc="left", color=INK)
            axes.set_xlabel(_short(across))
            axes.grid(visible=True)
        points_x, points_y = (np.concatenate([panel[place] for panel in panels]) for place in (1, 2))
        for axes in all_axes:
            if log:
                _log_scale(axes, "x", points_x.min(), points_x.max(), widely=True)
            else:
                axes.set_xlim(*_with_margin(points_x.min(), points_x.max()))
                _plain_numbers(axes, "x")
            _log_scale(axes, "y", points_y.min(), points_y.max())
        for axes in all_axes[1:]:
            axes.set_yticklabels([])
        all_axes[0].set_ylabel(_short(up))
        return _image(figure, alt)


# --- what all plots share ---


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """The look of every plot. If the font lacks a letter no warning is needed: the browser has other fonts."""
    import matplotlib

    settings: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "text.color": INK,
        "text.parse_math": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": MUTED,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.grid.axis": "x",
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "svg.fonttype": "none",
        "svg.hashsalt": "svysynth",
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _panels(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _image(figure: Figure, alt: str) -> Image:
    """The figure as an image, in the colours of light pages and of dark ones."""
    buffer = io.BytesIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", dpi=RASTER, metadata=metadata)
    light = buffer.getvalue().decode().replace("'DejaVu Sans'", FONTS)
    dark = re.sub("|".join(IN_THE_DARK), lambda found: IN_THE_DARK[found[0]], light)
    width, height = (round(inches * DOTS_PER_INCH) for inches in figure.get_size_inches())
    return Image(_address(light), _address(dark), alt, width, height)


def _address(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _short(label: str, longest: int = LONGEST_LABEL) -> str:
    return shown(label if len(label) <= longest else label[: longest - 1] + "…")


def _number(value: float) -> str:
    return f"{value:,.6g}".replace("-", "−") if abs(value) < 1e7 else f"{value:.3g}"


def _plain_numbers(axes: Axes, name: str) -> None:
    """Numbers as in the tables, and not so many that they run into each other."""
    from matplotlib.ticker import MaxNLocator

    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(_formatter())


def _with_margin(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis, with a little room beyond the points."""
    room = 0.03 * (high - low) or 1.0
    return float(low) - room, float(high) + room


def _log_scale(axes: Axes, name: str, low: float, high: float, *, widely: bool = False) -> None:
    """A logarithmic axis with ticks at 1, 2, 5 (or 1, 3; or powers of ten) where the range is short enough for them."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = float(low), float(high)
    getattr(axes, f"set_{name}scale")("log")
    getattr(axes, f"set_{name}lim")(low / 1.1, high * 1.1)
    decades = np.log10(high / low)
    digits = (1, 2, 5) if decades < (1 if widely else 2) else (1, 3) if decades < (3 if widely else 4) else (1,)
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    powers = range(first, last + 1, max(1, (last - first) // 6))
    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(FixedLocator([digit * 10.0**power for power in powers for digit in digits]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_formatter())


def _formatter() -> Callable[[float, int], str]:
    return lambda value, _: _number(value)


def thinned(values: Floats) -> Floats:
    """At most so many values as a plot can show, the largest among them."""
    if len(values) <= MOST_POINTS:
        return values
    return np.append(values[chosen(len(values))], values.max())


def chosen(size: int) -> Integers:
    """The records that a plot shows, the same each time."""
    if size <= MOST_POINTS:
        return np.arange(size)
    return Streams.seeded(0).generator("report").choice(size, MOST_POINTS, replace=False)
