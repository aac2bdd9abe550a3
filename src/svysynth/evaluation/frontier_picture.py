"""The frontier as pictures: RMSE ratio against ε, and the paper's violins of the ratios of all cells."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from svysynth.core.registry import mechanism_names

COLOURS = ("#0b5394", "#b45f06", "#38761d", "#741b47", "#0c7c79", "#7f6000")
STYLES = ("-", "--", ":", "-.")


def draw_frontier(summary: pl.DataFrame, path: Path, note: str) -> None:
    """Medians with quartiles as a band; the line at 1 is the confidential sample's own error."""
    from matplotlib.figure import Figure

    statistics = summary["statistic"].unique(maintain_order=True).to_list()
    sizes = [size for size in summary["datasets"].unique().sort() if size]
    figure = Figure(figsize=(5.6 * len(statistics), 4.8), layout="constrained")
    for axes, statistic in zip(figure.subplots(1, len(statistics), squeeze=False)[0], statistics, strict=True):
        for (mechanism, datasets), line in summary.filter(statistic=statistic).group_by(
            "mechanism", "datasets", maintain_order=True
        ):
            style = STYLES[sizes.index(datasets) % len(STYLES)] if datasets else "-"
            label = f"{mechanism}, m = {datasets}" if datasets else str(mechanism)
            color = _colour(str(mechanism))
            axes.plot(line["epsilon"], line["median"], style, color=color, marker="o", markersize=4, label=label)
            axes.fill_between(line["epsilon"], line["lower_quartile"], line["upper_quartile"], color=color, alpha=0.08)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(title=statistic, xlabel="ε", xscale="log", yscale="log")
        axes.set_ylabel("RMSE / standard error of the direct estimate")
        axes.set_xticks(summary["epsilon"].unique().sort().to_list(), minor=False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(alpha=0.25, which="both")
        axes.legend(frameon=False, fontsize=8)
    figure.supxlabel(note, fontsize=7, wrap=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def draw_ratios(found: pl.DataFrame, path: Path, note: str) -> None:
    """The paper's figure for every ε: RMSE ratios of all cells as violins, one for each method, the line at 1."""
    from matplotlib.figure import Figure

    found = found.drop_nulls("rmse_ratio").filter(pl.col("rmse_ratio") > 0)
    statistics = found["statistic"].unique(maintain_order=True).to_list()
    epsilons = found["epsilon"].unique().sort().to_list()
    figure = Figure(figsize=(1.2 + 3.4 * len(epsilons), 0.6 + 3.2 * len(statistics)), layout="constrained")
    panels = figure.subplots(len(statistics), len(epsilons), squeeze=False, sharey="row")
    for row, statistic in zip(panels, statistics, strict=True):
        for axes, epsilon in zip(row, epsilons, strict=True):
            part = found.filter(statistic=statistic, epsilon=epsilon)
            groups = list(part.group_by("mechanism", "datasets", maintain_order=True))
            for place, ((mechanism, _), cells) in enumerate(groups):
                body = axes.violinplot(cells["rmse_ratio"].log10().to_numpy(), [place], widths=0.8, showmedians=True)
                for piece in (*body["bodies"], *(body[name] for name in ("cbars", "cmins", "cmaxes", "cmedians"))):
                    piece.set_color(_colour(str(mechanism)))
            names = [
                f"{mechanism}\nm = {m}" if m else str(mechanism).replace("-", "-\n") for (mechanism, m), _ in groups
            ]
            axes.set_xticks(range(len(groups)), names, fontsize=7)
            axes.axhline(0, color="black", linewidth=0.8)
            axes.set_title(f"{statistic}, ε = {epsilon:g}", fontsize=9)
            axes.yaxis.set_major_formatter(lambda value, _: f"{10**value:.3g}")
            axes.grid(alpha=0.25, axis="y")
        row[0].set_ylabel("RMSE ratio")
    figure.supxlabel(note, fontsize=7, wrap=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


def _colour(mechanism: str) -> str:
    """The same for a mechanism in every picture."""
    return COLOURS[mechanism_names().index(mechanism) % len(COLOURS)]
