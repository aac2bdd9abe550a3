"""Makes docs/clusters.md from the results of bench/clusters.py and bench/districts.py: python bench/clusters_page.py"""

from pathlib import Path

import polars as pl

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "clusters.md"
RESULTS = HERE / "results" / "clusters.csv"
DISTRICTS = HERE / "results" / "districts.csv"
CELLS = ["cells of three", "cells of two", "margins", "whole"]
METHODS = {
    "direct": "the sample, with its clusters",
    "direct ignoring clusters": "the sample, clusters ignored",
    "fbs": "FBS from noisy sums",
    "fbs ignoring clusters": "FBS from noisy sums, clusters ignored",
    "laplace": "noise on the tables",
    "laplace, narrow bounds": "noise on the tables, narrower bounds",
    "laplace, narrow bounds ignoring clusters": "noise on the tables, narrower bounds, clusters ignored",
    "asymptotic fbs": "FBS, asymptotic (not differential privacy)",
}
COVERAGE, LONGEST = 0.92, 1.3
TOP = """# Samples of clusters: coverage on repeated samples

This page shows how often 95% intervals cover the true figure if the sample was drawn in two stages. It is made by
`python bench/clusters_page.py` from bench/results/clusters.csv, which `python bench/clusters.py` writes. A population
has 1,000 clusters in five regions. From each region twelve clusters are drawn with replacement, with probabilities that
go with the outcome, and from each cluster 10 to 30 records, again with unequal probabilities. Each sample is protected
once. Tables are by region, sex and age group.

FBS is the fully Bayes model of the observed sample, with effects of clusters. ε is the privacy loss (smaller is safer)
for an answer that is blanked out: 5 for noisy sums, 10.8 for the asymptotic mechanism, which makes three synthetic
files. Noise on the tables (`laplace`) has ε = 10, blanked out or changed; noisy sums have 10 for a changed answer too.
Its bounds are those of noisy sums: 1,000 to 1,000,000 for the outcome, and a twentieth to twenty times the mean weight.
The narrower ones are 5,000 to 250,000, and a tenth to six times. The *share between clusters* is the intraclass
correlation of the log outcome.

An entry has four numbers: cells of three columns, cells of two, margins of one, and the whole file, each the mean over
its cells. There is no interval where a figure is known without error. Lengths are ratios to those of the direct
analysis of the sample with its clusters. **Bold**: coverage below 0.92, or lengths above 1.3. R is the number of
releases. With R releases the coverage of one figure has a standard error of up to 0.22/√R.
"""
BOTTOM = """
## How to read the tables

If clusters are ignored, intervals are far too short, and the shorter the larger the part of the population: cells that
are spread over all clusters have most of the variance between clusters. Noisy sums with clusters cover at least as
often as the direct analysis, which itself covers too rarely in small cells. Their intervals are at most 1.3 times as
long. Chains have at most 2 rounds here, where those of a release have up to 24. Within these rounds 142 of 300 fits
passed their diagnostics at 0.05, and 131 at 0.2; the tables have all of them.

Noise on the tables covers counts and means in 0.95 of the samples or more. With the narrower bounds, intervals of
counts are at most 1.22 times as long as those of the direct analysis. Those of means are longer: 1.27 and 1.50 times
for the whole file, and up to 1.9 times in cells. With the wide bounds means are of little use. If clusters are ignored,
counts are covered in as few as 0.59 of the samples. Intervals of means may then be too long and not too short, because
the spread of outcomes comes from sums with more noise.

The weights α of the asymptotic mechanism move the centre of the posterior away from where it is without them. The bias
that all samples have in common is corrected. What differs from sample to sample stays: 1.2% of the mean at 0.05, beside
a sampling error of 2.6%. Standard errors contain it, estimated from simulated surveys ([method.md](method.md)). With
0.05 between clusters, intervals of means of the whole file cover in 0.926 of 299 samples and those of margins in 0.940;
without this term it was 0.910 and 0.914. The term makes intervals of means 3% to 6% longer there, and 2% to 4% with 0.2
between clusters, where they cover as often as they should without it too. The mechanism refused one sample of 300 at
0.05, before the charge, and none of 176 at 0.2.

`python bench/clusters.py --help` says how to run the study.
"""

PUBLIC = """
## School districts, public weights

`python bench/districts.py` draws districts from the 757 districts of R `survey`'s apipop (6,194 schools) and releases
the mean of api00 by type of school, without a logarithm, with the weights declared public. *Equal*: simple random
samples of districts with all their schools, as in R's apiclus1, so that all weights are the same. *By size*: with
replacement and chances in proportion to the number of schools, and ten schools of each district, or all if there are
fewer. ε is for an outcome that is blanked out. An entry has two numbers: the three types of school, and all schools.
Lengths and RMSE are ratios to those of the direct analysis. Counts are exact, with the standard errors of the direct
analysis. Chains have at most 4 rounds, where those of a release have up to 24; *passed* is the number of fits that
passed their diagnostics within these rounds. Of 20 samples of 40 districts by size, run as a release is, all passed.

"""
AFTER = """
Districts differ much in size, so the direct analysis covers too rarely, in samples with equal chances above all. The
released intervals cover at least as often. Where the direct standard errors are too small, the released ones, which
come from a model with one variance between clusters for all cells, are close to the actual errors, and intervals are
longer for this reason.
"""


def main():
    found = pl.read_csv(RESULTS, infer_schema_length=None).filter(pl.col("kind") == "tables")
    text = TOP
    for icc in found["icc"].unique(maintain_order=True):
        text += f"\n## Share between clusters: {icc:g}\n\n"
        text += "| method | R | counts: coverage | counts: length | means: coverage | means: length |\n"
        text += "|---|---|---|---|---|---|\n"
        for method, name in METHODS.items():
            own = found.filter(pl.col("icc") == icc, pl.col("method") == method)
            if not own.is_empty():
                entries = [entry(own, statistic, column) for statistic in ("count", "mean") for column in LIMITS]
                text += f"| {name} | {own['replicates'][0]:,} | {' | '.join(entries)} |\n"
    PAGE.write_text(text + BOTTOM + PUBLIC + districts() + AFTER, encoding="utf-8")


def districts():
    """The table of the samples of school districts."""
    found, of = pl.read_csv(DISTRICTS).filter(statistic="mean"), pl.col
    lines = ["| districts | ε | R | passed | coverage | length | RMSE | standard error over RMSE |", 8 * "|---" + "|"]
    for design, drawn in found.select("design", "districts").unique(maintain_order=True).iter_rows():
        own = found.filter(of("design") == design, of("districts") == drawn)
        epsilons = own["epsilon"].unique().sort().to_list()
        for kind, epsilon in [("direct", epsilons[0]), *(("tables", epsilon) for epsilon in epsilons)]:
            rows, direct = own.filter(kind=kind, epsilon=epsilon), kind == "direct"
            cells = [f"{drawn}, {design}", "the sample" if direct else f"{epsilon:g}", f"{rows['replicates'].min()}"]
            cells.append("" if direct else f"{rows['passed'].min()}")
            for column in ("coverage", "length_over_direct", "rmse_over_direct", "se_over_rmse"):
                both = [rows.filter(cells=name)[column].item() for name in ("types", "whole")]
                cells.append(" / ".join(f"{value:.3f}" if column == "coverage" else f"{value:.2f}" for value in both))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


LIMITS = {"coverage": lambda value: value < COVERAGE, "length_over_direct": lambda value: value > LONGEST}


def entry(rows, statistic, column):
    """The figures of one statistic in all classes of cells; those outside the limits are bold."""
    return " / ".join(number(rows, statistic, column, cells) for cells in CELLS)


def number(rows, statistic, column, cells):
    value = rows.filter(pl.col("statistic") == statistic, pl.col("cells") == cells)[column]
    if value.is_empty():
        return "–"
    text = f"{value[0]:.2f}" if column == "length_over_direct" else f"{value[0]:.3f}"
    return f"**{text}**" if LIMITS[column](value[0]) else text


if __name__ == "__main__":
    main()
