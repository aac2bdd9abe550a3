"""Compares Laplace noise on the stand-in with the paper's printed columns: docs/laplace.md and its figure.

    python bench/study_of_laplace_tables.py
    python bench/study_of_laplace_tables.py --draws 20 --out FOLDER

Measures the standard error of every cell over draws of noise and half-samples. In inner cells the standard errors must
be of the same order of magnitude as the paper's, by their median ratio.
"""

from __future__ import annotations

import sys
from importlib import resources

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.figure import Figure

from criteria import bullets, judge, paragraph, settings, write
from svysynth.core.spec.whole import parse_spec
from svysynth.core.streams import Streams
from svysynth.mechanisms.paper_comparison.tables import LABEL, laplace_tables
from svysynth.survey.doctorates import doctorates, published_table
from svysynth.survey.survey import survey_from_frame

DRAWS = 200
REPLICATES = 10
PUBLISHED = {"count": "sdr_counts", "mean": "sdr_salary"}
NAMES = {"count": "Counts", "mean": "Average salaries"}
KINDS = {
    "inner cells": (pl.col("field") != "All") & (pl.col("gender") != "All"),
    "fields": (pl.col("field") != "All") & (pl.col("gender") == "All"),
    "genders": (pl.col("field") == "All") & (pl.col("gender") != "All"),
    "total": (pl.col("field") == "All") & (pl.col("gender") == "All"),
}
CELLS = 27
EPSILON = 10.8
"""The privacy loss of the paper's published tables."""
SAME_ORDER = 0.5
"""Medians whose logarithms to base 10 differ by less are of the same order of magnitude: a factor of 3.2."""
LOOKS = {"svg.hashsalt": "laplace", "svg.fonttype": "none"}


def main(given=None):
    chosen = settings(__doc__, given, draws=DRAWS)
    beside, one = compare(chosen.draws)
    write(chosen.out / "laplace.md", page(beside, one, chosen.draws))
    draw_figure(beside, chosen.out / "laplace.svg")
    return judge(criteria(beside))


def compare(draws):
    """For each statistic, every cell's median standard error over draws beside the paper's; and the tables of one draw.

    Each cell also has the quartiles over the draws, because the paper prints one draw.
    """
    spec = parse_spec((resources.files("svysynth.survey") / "doctorates.toml").read_text(encoding="utf-8"))
    survey = survey_from_frame(doctorates(), spec.survey)
    codes = {label: code for code, label in spec.survey.labels["field"].items()}
    results = [
        laplace_tables(survey, spec.requested_tables, EPSILON, Streams.seeded(draw), REPLICATES)
        for draw in range(draws)
    ]
    found = np.quantile([one.tables["se"].to_numpy() for one in results], [0.25, 0.5, 0.75], axis=0)
    here = (
        results[0]
        .tables.select("statistic", pl.col("field").replace(codes), "gender")
        .with_columns(pl.Series("low", found[0]), pl.Series("here", found[1]), pl.Series("high", found[2]))
    )
    beside = {
        statistic: here.filter(statistic=statistic)
        .join(published_table(name), on=["field", "gender"], maintain_order="right")
        .with_columns(ratio=pl.col("here") / pl.col("laplace_se"))
        for statistic, name in PUBLISHED.items()
    }
    return beside, results[0]


def criteria(beside):
    for statistic, cells in beside.items():
        name, ratio = NAMES[statistic], median_ratio(cells, "inner cells")
        yield cells.height == CELLS, f"{name}: {cells.height} cells beside the paper's, not {CELLS}"
        same = abs(np.log10(ratio)) < SAME_ORDER
        yield (
            same,
            f"{name}: in inner cells the ratio to the paper's is {ratio:.2f}, which is another order of magnitude",
        )


def median_ratio(cells, kind):
    return cells.filter(KINDS[kind])["ratio"].median()


# --- the page ---


def page(beside, one, draws):
    """The page in Markdown: what was done, by how much the figures differ and why, and the numbers of every cell."""
    tables = "\n".join(f"## {NAMES[statistic]}\n\n{table(cells)}" for statistic, cells in beside.items())
    summaries = "\n".join(
        f"| {NAMES[statistic]} | {kind} | {cells.filter(of)['here'].median():,.0f} "
        f"| {cells.filter(of)['laplace_se'].median():,.0f} | {median_ratio(cells, kind):.2f} |"
        for statistic, cells in beside.items()
        for kind, of in KINDS.items()
    )
    return f"""# The Laplace comparison

{paragraph(introduction(one, draws))}

| statistic | rows | here: median | paper: median | median of ratios |
|---|---|--:|--:|--:|
{summaries}

![Standard errors here against those of the paper](laplace.svg)

{paragraph(CONCLUSION)}

{bullets(agreement(beside, one))}

{tables}"""


CONCLUSION = """
The orders of magnitude are the paper's: thousands for inner counts, hundreds of thousands for inner average salaries,
which is more than the salaries themselves. In inner cells nearly all of the standard error is the noise of the
replicates, so it depends on the sensitivity of the inner cells and on little else.
"""


def introduction(one, draws):
    return f"""
    This page is a **{LABEL}**. It compares our standard errors of the paper's Laplace mechanism
    (`mechanisms/paper_comparison/tables.py`) with those that the paper prints. `make study` makes the page
    (`bench/study_of_laplace_tables.py`). The mechanism adds noise to tables and is the
    paper's alternative to synthetic data. Its sensitivities come from the confidential data, so nothing is promised,
    whatever the value of ε (the nominal privacy loss; smaller is safer). Here the mechanism runs on the stand-in for
    the Survey of Doctorate Recipients at
    ε = {one.split.epsilon:g} with R = {one.split.replicates} replicates. Each record is used {one.split.uses} times:
    ε is {one.split.point:g} for each point estimate and {one.split.replicate:g} for each replicate. The paper prints
    one draw of the noise; the columns *here* have the median and the quartiles over {draws} draws of noise and
    half-samples.
    """


def agreement(beside, one):
    """Paragraphs: by how much the figures differ from the paper's, and why."""
    widest = {level.level: level.sensitivity for level in one.noise if level.statistic == "count"}
    inner, genders = (beside["count"].filter(KINDS[kind]) for kind in ("inner cells", "genders"))
    salaries = beside["mean"].filter(KINDS["inner cells"])
    here, printed = widest["field", "gender"], widest["field", "gender"] / inner["ratio"].median()
    noisy, direct = (" and ".join(f"{se:,}" for se in genders[column]) for column in ("laplace_se", "sample_se"))
    typical, chance = margins_with_the_noise_of(inner, genders)
    expected = " and ".join(f"{round(se, -2):,.0f}" for se in typical)
    yield f"""
    Standard errors of salaries agree: the median ratio over inner cells is {salaries["ratio"].median():.2f}, and
    {within_quartiles(salaries)} of the 16 printed figures lie between the quartiles found here, where 8 are expected.
    """
    yield f"""
    Counts have larger standard errors here, {inner["ratio"].median():.1f} times the paper's in inner cells. The
    sensitivity of a count is the range of the weights in a cell. It is {here:.0f} in the stand-in, whose weights are
    lognormal with the published standard errors; the printed figures imply about {printed:.0f}. The published tables
    say how much the weights vary but not how far they reach, and the paper does not print its sensitivities.
    """
    yield f"""
    The standard errors of the genders' counts differ most, by a factor of {genders["ratio"].median():.1f}. The paper
    prints {noisy}: less than its own standard errors without noise, {direct}, and less than most of its inner cells,
    although the sensitivity of a margin cannot be less than that of the cells in it. With the noise of the paper's
    inner cells about {expected} would be typical, and two figures as low as the printed ones would have a probability
    of {chance:.0e}. (They were examined because they stand out, so this probability is not that of a test planned in
    advance.)
    """


def within_quartiles(cells):
    return cells.filter(pl.col("laplace_se").is_between(pl.col("low"), pl.col("high"))).height


def margins_with_the_noise_of(inner, margins):
    """Typical standard errors of margins with the paper's sampling errors and the noise that its inner cells show.

    Also the chance that all of them come out as low as the paper prints them.
    """
    generator = Streams.seeded(0).generator("margins")
    noise, sampling = (draw(size=(400_000, REPLICATES)) for draw in (generator.laplace, generator.standard_normal))
    size = np.sqrt(inner["laplace_se"].median() ** 2 - inner["sample_se"].median() ** 2)
    scale = size / np.median(np.sqrt(np.square(noise).mean(axis=1)))
    drawn = [np.sqrt(np.square(scale * noise + se * sampling).mean(axis=1)) for se in margins["sample_se"]]
    chances = [np.mean(se <= printed) for se, printed in zip(drawn, margins["laplace_se"], strict=True)]
    return np.median(drawn, axis=1), np.prod(chances)


def table(cells):
    """A Markdown table with every cell, in the paper's order."""
    head = "| field | gender | here: median | quartiles | paper | ratio |\n|---|---|--:|--:|--:|--:|\n"
    return head + "".join(
        f"| {row['field']} | {row['gender']} | {row['here']:,.0f} | {row['low']:,.0f} – {row['high']:,.0f} "
        f"| {row['laplace_se']:,} | {row['ratio']:.2f} |\n"
        for row in cells.rows(named=True)
    )


def draw_figure(beside, path):
    """Both statistics on logarithmic axes, with the line of equality and the quartiles."""
    with mpl.rc_context(LOOKS):
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        axes = figure.subplots(1, len(beside))
        for axis, (statistic, cells) in zip(axes, beside.items(), strict=True):
            for kind, of in KINDS.items():
                part = cells.filter(of)
                spread = [part["here"] - part["low"], part["high"] - part["here"]]
                axis.errorbar(
                    part["laplace_se"], part["here"], yerr=spread, fmt="o", markersize=4, elinewidth=0.8, label=kind
                )
            ends = [cells.select(pl.min_horizontal("low", "laplace_se").min()).item() * 0.8]
            ends.append(cells.select(pl.max_horizontal("high", "laplace_se").max()).item() * 1.25)
            axis.plot(ends, ends, color="0.5", linewidth=1, label="equal")
            axis.tick_params(which="minor", labelsize=6)
            axis.set(title=f"{NAMES[statistic]}: standard errors", xlabel="paper, one draw", xscale="log", yscale="log")
        axes[0].set_ylabel("here, median and quartiles")
        axes[0].legend()
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
