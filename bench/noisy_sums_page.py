"""Makes docs/noisy-sums.md and its figure from the results of bench/noisy_sums.py: python bench/noisy_sums_page.py"""

from pathlib import Path

import matplotlib as mpl
import polars as pl
from matplotlib.figure import Figure

mpl.rcParams |= {"svg.hashsalt": "svysynth", "font.size": 9}
HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS = HERE / "results" / "noisy-sums.csv"
DIAGNOSTICS = HERE / "results" / "noisy-sums-diagnostics.csv"
CLASSES = [("count", "field"), ("count", "inner"), ("mean", "field"), ("mean", "inner"), ("mean", "total")]
NAMES = ["counts of fields", "counts of inner cells", "means of fields", "means of inner cells", "mean of the whole"]
POPULATIONS = {
    "paper": "The paper's simulation",
    "CPSSW8": "Hourly earnings (CPSSW8, 61,395 workers)",
    "apipop": "Schools' scores (R survey's apipop, 6,194 schools)",
}
COVERAGE, ERRORS = (0.93, 0.985), (0.95, 1.35)
LENGTHS = (0.95, 1.05)
LEAST_EPSILON = {1000: 3, 10_000: 1}
"""The smallest ε for which the limits are to hold, by the number of records."""
METHODS = {
    "fbs": "FBS from noisy sums",
    "fbp": "FBP from noisy sums",
    "asymptotic fbs": "FBS, asymptotic (not differential privacy)",
    "asymptotic fbp": "FBP, asymptotic (not differential privacy)",
    "laplace": "noise on the tables (laplace)",
}
TOP = """# Noisy sums: coverage on repeated samples

This page shows how often 95% intervals from noisy sums cover the true figure, for repeated samples from known
populations. It is made by `python bench/noisy_sums_page.py` from bench/results/noisy-sums.csv, which
`python bench/noisy_sums.py` writes. FBS is the fully Bayes model of the observed sample, FBP the fully Bayes model of
the population and the sampling. Samples are stratified PPS samples. Each sample is protected once, and tables are by
field and gender (or by region and gender, or by school type and award).

ε is the privacy loss (smaller is safer) for an answer that is blanked out; for a changed answer it is twice as large.
Noise on the tables has only one ε, the same for blanked and for changed answers: it was run with twice the ε shown.

Each entry of the tables has five numbers: counts of fields, counts of inner cells; means of fields, means of inner
cells, mean of the whole file. Lengths and RMSE are ratios to the sample's own. **Bold**: coverage outside 0.93 to
0.985, or standard error over RMSE outside 0.95 to 1.35. R is the number of samples. With R samples the coverage of one
figure, such as the mean of the whole file, has a standard error of up to 0.22/√R; that of a class of cells is smaller.
*Fit* is the share of releases in which the check of the model's shape, by the noisy histograms, found no misfit.

Fits of this study have 250 draws from chains of fixed length. A release has 1,000 draws, from chains that are
continued until their diagnostics pass, within limits; the last section shows how often they passed. The asymptotic
mechanism is used as in a release: bias-corrected, with three synthetic files. For this mechanism R is the number of
releases that were not refused, because for a small ε there may be no suitable weights α. At ε = 5 it was tried on fewer
samples, because one of its releases takes up to thirty times as long.

![Coverage, length and error by ε](noisy-sums.svg)
"""

OUTSIDE = """
## What is outside the limits

On the paper's simulation, noisy sums are to have coverage and standard error over RMSE within the limits above, in
every class of cells, for ε ≥ 3 with n = 1,000 and ε ≥ 1 with n = 10,000. At ε = 10.8 with n = 1,000 interval lengths
are to be within 5% of the sample's. These entries are outside. A shorter interval with the right coverage means that
the model makes the estimate more precise than the sample's own.

"""


def main():
    found = pl.read_csv(RESULTS, infer_schema_length=None).filter(pl.col("kind") == "tables")
    text = TOP
    for population, title in POPULATIONS.items():
        own = found.filter(pl.col("population") == population)
        for records in own["records"].unique(maintain_order=True):
            text += f"\n## {title}, n = {records:,}\n\n"
            text += "| method | ε | R | coverage | length | RMSE | standard error over RMSE | fit |\n"
            text += "|---|---|---|---|---|---|---|---|\n"
            rows = own.filter(pl.col("records") == records)
            for (method, epsilon), some in rows.group_by("method", "epsilon", maintain_order=True):
                text += line(method, epsilon, some)
    (DOCS / "noisy-sums.md").write_text(text + outside(found) + diagnostics(), encoding="utf-8")
    draw(found.filter(pl.col("population") == "paper"))


def outside(found):
    """What noisy sums were to reach on the paper's simulation, and each entry that is outside these limits."""
    own = found.filter(
        pl.col("population") == "paper",
        pl.col("method").is_in(["fbs", "fbp"]),
        pl.col("epsilon") >= pl.col("records").replace_strict(LEAST_EPSILON),
    )
    lists = {
        "Coverage": own.filter(~pl.col("coverage").is_between(*COVERAGE)),
        "Standard error over RMSE": own.filter(~pl.col("se_over_rmse").is_between(*ERRORS)),
        "Length": own.filter(epsilon=10.8, records=1000).filter(~pl.col("length_over_sample").is_between(*LENGTHS)),
    }
    text = OUTSIDE
    for (name, rows), column in zip(lists.items(), ("coverage", "se_over_rmse", "length_over_sample"), strict=True):
        listed = [
            f"{NAMES[CLASSES.index((row['statistic'], row['cells']))]} {row[column]:.3g} with {row['method'].upper()}, "
            f"ε = {row['epsilon']:g}, n = {row['records']:,} (RMSE {row['rmse_over_sample']:.2f} times the sample's)"
            for row in rows.iter_rows(named=True)
            if (row["statistic"], row["cells"]) in CLASSES
        ]
        text += f"- {name}: {'; '.join(listed) or 'all within the limits'}.\n"
    return text


def diagnostics():
    """A table in Markdown: how many fits with the settings of a release passed their diagnostics."""
    found = (
        pl.read_csv(DIAGNOSTICS).filter(pl.col("method").is_in(["fbs", "fbp"])).unique(["records", "method", "epsilon"])
    )
    values = sorted(found["epsilon"].unique())
    text = "\n## Diagnostics with the settings of a release\n\n"
    text += "Number of fits on the paper's simulation that passed their diagnostics.\n\n"
    heads = " | ".join(f"ε = {value:g}" for value in values)
    text += f"| n | model | {heads} |\n|---|---{'|---' * len(values)}|\n"
    for (records, method), rows in found.sort("records", "method", descending=[False, True]).group_by(
        "records", "method", maintain_order=True
    ):
        entries = [rows.row(by_predicate=pl.col("epsilon") == value, named=True) for value in values]
        shown = " | ".join(f"{one['passed']} of {one['replicates']}" for one in entries)
        text += f"| {records:,} | {method.upper()} | {shown} |\n"
    return text


def line(method, epsilon, rows):
    one = rows.row(0, named=True)
    shown = [f"{one['fit'] / one['replicates']:.3f}" if method in ("fbs", "fbp") else ""]
    columns = [
        entries(rows, "coverage", "{:.3f}", COVERAGE),
        entries(rows, "length_over_sample", "{:.2f}"),
        entries(rows, "rmse_over_sample", "{:.2f}"),
        entries(rows, "se_over_rmse", "{:.2f}", ERRORS),
    ]
    head = [METHODS.get(method, method), f"{epsilon:g}" if epsilon else "", str(one["replicates"])]
    return "| " + " | ".join(head + columns + shown) + " |\n"


def entries(rows, column, form, limits=None):
    texts = []
    for statistic, cells in CLASSES:
        value = rows.filter(statistic=statistic, cells=cells)[column]
        text = form.format(value.item()) if len(value) else "–"
        wrong = limits and len(value) and not limits[0] <= value.item() <= limits[1]
        texts.append(f"**{text}**" if wrong else text)
    return f"{texts[0]}, {texts[1]}; {texts[2]}, {texts[3]}, {texts[4]}"


def draw(found):
    sizes = found["records"].unique().sort().to_list()
    panels = {"coverage": "coverage", "length_over_sample": "length over the sample's", "se_over_rmse": "se / RMSE"}
    figure = Figure(figsize=(9, 9), layout="tight")
    axes = figure.subplots(len(panels), len(sizes), sharex=True, sharey="row", squeeze=False)
    for place, records in enumerate(sizes):
        for axis, (column, label) in zip(axes[:, place], panels.items(), strict=True):
            for method, style in (("fbs", "-"), ("fbp", "--")):
                for number, (statistic, cells) in enumerate(CLASSES):
                    own = found.filter(
                        pl.col("epsilon") > 0, records=records, method=method, statistic=statistic, cells=cells
                    ).sort("epsilon")
                    named = {"label": NAMES[number]} if method == "fbs" else {}
                    axis.plot(own["epsilon"], own[column], style, color=f"C{number}", marker=".", **named)
            axis.set_xscale("log")
            axis.set_xticks([0.5, 1, 2, 3, 5, 10.8], ["0.5", "1", "2", "3", "5", "10.8"])
            if column == "length_over_sample":
                axis.set_yscale("log")
                axis.set_yticks([1, 1.5, 2, 3, 5], ["1", "1.5", "2", "3", "5"])
            axis.minorticks_off()
            for limit in {"coverage": COVERAGE, "se_over_rmse": ERRORS}.get(column, (1.0,)):
                axis.axhline(limit, color="0.6", linewidth=0.8, zorder=0)
            axis.set_ylabel(label if place == 0 else "")
        axes[0, place].set_title(f"n = {records:,}")
        axes[-1, place].set_xlabel("ε, blanked answers")
    axes[1, -1].legend(frameon=False, fontsize=8)
    both = "FBS (lines) and FBP (dashes)" if "fbp" in found["method"] else "FBS"
    figure.suptitle(f"{both} from noisy sums, the paper's simulation")
    figure.savefig(DOCS / "noisy-sums.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
