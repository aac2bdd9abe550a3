"""Makes docs/margins.md from the results of bench/margins.py: python bench/margins_page.py"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl

from margins_files import cases
from writing import page, paragraph, table

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "margins.md"
RESULTS = HERE / "results" / "margins.csv"
KINDS = "counts", "counts of categories", "shares", "yes or no", "amounts", "medians", "by a confidential category"
LIMITS = {"counts": 1.2, "counts of categories": 1.2, "shares": 1.2, "yes or no": 1.2, "amounts": 2.0, "medians": 2.0}
"""The largest root mean square difference that is asked for at ASKED, in direct standard errors."""
ASKED, INSIDE, WHOLE = 3.0, 0.9, 0.02
STEPS = "measuring", "fitting", "files", "tables"
TOP = """# Margins: real files beside their direct tables

This page shows how far tables from the mechanism `margins` are from the direct tables of real files that nobody made
for it. It is made by `python bench/margins_page.py` from the results of `python bench/margins.py`, which runs what a
release runs, with seeds instead of fresh random numbers.

ε is the privacy loss for an answer that is blanked out (smaller is safer). `privacy.epsilon` is for changed answers and
is twice as large: ε = 3 below is `epsilon = 6` in a spec. Each release has ten synthetic files.
"""
MEASURED = """## What is measured

Every figure of every table is compared with the direct figure of the same cell: cells, margins and the whole file.

- *Differences*: the root mean square of the difference, in standard errors of the direct figure. A difference of 1
  means that protection has moved a figure by as much as another sample would. Direct figures without a standard error
  are left out, and one figure with a very small standard error can determine the root mean square.
- *Inside*: the share of direct figures that are inside the released 95% intervals. These intervals are for the
  population and include the sampling error, so far more than 95% of direct figures should be inside.
- *Length*: the median, over figures, of the length of the released interval divided by that of the direct one.
- *Whole file*: how far the mean of an amount or the share of a yes/no answer in the whole file is from the direct one,
  in percent of the direct one; the largest of all answers and runs.

Counts are of cells; counts of categories, and shares, are of the levels of a confidential category in each cell. The
column on the right is for means of an amount by a confidential category in the whole file.
"""

READING = """## How to read these results

**There are few runs**: the column *runs* says how many, and an ε without a row was not tried. Figures of one run share
its noise, so one run says little about the share inside.

**Rows with few records.** Sums of weights in the rows of a column have noise of the same size in every row, in
proportion to the range of the weights. Where weights differ by a factor of 40, as in ses, a count of an industry with
four records is far from the direct one, and its interval is long. Combine such levels, or leave the column out.

**Means by a confidential category, and regressions,** rest on margins of two answers in wide bands. Their differences
are larger than those of tables by public columns, and effects that are small beside the noise are drawn towards zero.

**Means where weights depend on the answer.** Amounts and weights are measured together in wide bands only. If they
were independent within these, the mean of the whole file would be far off in the samples of wages, drawn with
probabilities near the wage (*in bands*, below), whatever the noise. A release draws them together within bands too, as
a normal distribution with the correlation of the bands would have it. What is left of this bias is not in any standard
error: compare the mean of the whole file with the direct one, as the verdict does.
"""


def main() -> None:
    tables, joint, runs = (read(part) for part in ("", "-joint", "-runs"))
    parts = [
        TOP,
        "## The files\n\n" + files(runs),
        MEASURED,
        "## Differences, in direct standard errors\n\n" + differences(tables),
        "## Intervals, and figures of the whole file\n\n" + intervals(tables),
        "## What was asked for, and what does not hold\n\n" + failures(tables),
        READING,
        "## Joint answers\n\n" + joint_answers(joint),
        "## Verdicts\n\n" + verdicts(tables, runs),
        "## Time\n\n" + seconds(runs),
    ]
    PAGE.write_text(page(*(part.strip() for part in parts)) + "\n", encoding="utf-8")


def read(part: str) -> pl.DataFrame:
    found = pl.read_csv(RESULTS.with_name(f"margins{part}.csv"), infer_schema_length=None)
    order = {case.name: number for number, case in enumerate(cases())}
    return found.sort(pl.col("file").replace_strict(order), "epsilon", "seed", maintain_order=True)


def groups(frame: pl.DataFrame, *columns: str) -> Iterable[tuple[tuple[object, ...], pl.DataFrame]]:
    return frame.group_by(*columns, maintain_order=True)


def files(runs: pl.DataFrame) -> str:
    rows = []
    for case in cases():
        own = runs.filter(file=case.name)
        if own.height:
            answers = ", ".join(f"{name} ({one['kind']})" for name, one in case.variables.items())
            rows.append([case.name, case.title, f"{own['records'][0]:,}", answers, " × ".join(case.cells)])
    return table("name | file | records | answers | tables by", "llrll", rows)


def rms(some: pl.DataFrame) -> float:
    """The root mean square difference of all figures of some rows."""
    return float(np.sqrt((some["rms_off"] ** 2 * some["rows"]).sum() / some["rows"].sum()))


def share_inside(some: pl.DataFrame) -> float:
    return float((some["inside"] * some["rows"]).sum() / some["rows"].sum())


def whole_off(some: pl.DataFrame) -> float:
    known = some.filter(pl.col("whole_direct").is_not_null())
    return float((known["whole_released"] / known["whole_direct"] - 1).abs().max())


def differences(tables: pl.DataFrame) -> str:
    rows = []
    for (file, epsilon), some in groups(tables, "file", "epsilon"):
        entries = []
        for kind in KINDS:
            own = some.filter(kind=kind)
            value = rms(own) if own.height else None
            wrong = value is not None and epsilon == ASKED and value > LIMITS.get(kind, np.inf)
            shown = "" if value is None else f"{value:.2f}"
            entries.append(f"**{shown}**" if wrong else shown)
        rows.append([str(file), f"{epsilon:g}", f"{some['seed'].n_unique()}", *entries])
    note = paragraph(
        f"""**Bold**: more than was asked for at ε = {ASKED:g}, which is at most {LIMITS["counts"]} for counts, shares
        and yes/no answers, and {LIMITS["amounts"]:g} for amounts. *runs*: releases with different seeds."""
    )
    return table("file | ε | runs | " + " | ".join(KINDS), "lrr" + "r" * len(KINDS), rows) + "\n\n" + note


def intervals(tables: pl.DataFrame) -> str:
    rows = []
    for (file, epsilon), some in groups(tables, "file", "epsilon"):
        entries = []
        for kinds in (KINDS[:2], KINDS[2:4], KINDS[4:5], KINDS[5:6]):
            own = some.filter(pl.col("kind").is_in(kinds))
            entries.append(f"{share_inside(own):.0%}; {own['length'].median():.2f}" if own.height else "")
        rows.append([str(file), f"{epsilon:g}", *entries, f"{whole_off(some):.1%}"])
    return table("file | ε | counts | shares, yes or no | amounts | medians | whole file", "lrrrrrr", rows) + (
        "\n\nEach entry has the share of direct figures inside, and the length over the direct length."
    )


def failures(tables: pl.DataFrame) -> str:
    lines = []
    for (file,), some in groups(tables.filter(epsilon=ASKED), "file"):
        own = [
            f"{answer}, {kind}: differences {rms(rows):.2f}"
            for (answer, kind), rows in groups(some, "answer", "kind")
            if rms(rows) > LIMITS.get(str(kind), np.inf)
        ]
        own += [
            f"{answer}, {kind}: {share_inside(rows):.0%} inside"
            for (answer, kind), rows in groups(some, "answer", "kind")
            if share_inside(rows) < INSIDE
        ]
        own += [
            f"{answer}: mean of the whole file {whole_off(rows):.1%} off"
            for (answer,), rows in groups(some.filter(pl.col("whole_direct").is_not_null()), "answer")
            if whole_off(rows) > WHOLE
        ]
        lines.append(f"- {file}: {'; '.join(own) or 'all within what was asked for'}.")
    asked = f"""At ε = {ASKED:g} differences were to be at most {LIMITS["counts"]} for counts, shares and yes/no answers
    and {LIMITS["amounts"]:g} for amounts and medians, {INSIDE:.0%} of the direct figures inside, and means of the whole
    file within {WHOLE:.0%}. These answers are not."""
    return paragraph(asked) + "\n\n" + "\n".join(lines)


def joint_answers(joint: pl.DataFrame) -> str:
    rows, shown = [], sorted(joint["epsilon"].unique())
    for (file, figure), some in groups(
        joint.filter(pl.col("figure").str.ends_with("Intercept").not_()), "file", "figure"
    ):
        entries = []
        for epsilon in shown:
            own = some.filter(epsilon=epsilon)
            if own.is_empty():
                entries.append("")
                continue
            se, inside = own["released_se"].mean(), own["inside"].drop_nulls()
            error = "" if se is None else f" ± {number(float(se))}"  # type: ignore[arg-type]
            held = f" ({inside.sum()} of {len(inside)})" if len(inside) else ""
            entries.append(f"{number(float(own['released'].mean()))}{error}{held}")  # type: ignore[arg-type]
        direct = number(some["direct"][0]) + (f" ± {number(some['direct_se'][0])}" if some["direct_se"][0] else "")
        within = "" if some["in_bands"][0] is None else number(some["in_bands"][0])
        rows.append([str(file), str(figure).replace("~", "on"), direct, within, *entries])
    heads = " | ".join(f"ε = {epsilon:g}" for epsilon in shown)
    note = """Estimates with standard errors, the mean over runs, and in brackets in how many runs the direct estimate
    is inside the released interval. Correlations are weighted, and the mean over the files of a release. *In bands*
    is the direct figure, without noise, if amounts and weights were independent within the wide bands of margins; a
    release draws them together there. A pair of answers is measured together if one of them is the outcome, or if a
    table is of one by the other. All other pairs are independent in the files, given what was measured. So a
    regression of an answer on one that was not measured with it is wrong at every ε, and its interval does not show
    it; `svysynth regress` marks its coefficients as not measured."""
    return (
        paragraph(note)
        + "\n\n"
        + table(f"file | figure | direct | in bands | {heads}", "llrr" + "r" * len(shown), rows)
    )


def number(value: float) -> str:
    """Three significant digits, and whole numbers in full."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def verdicts(tables: pl.DataFrame, runs: pl.DataFrame) -> str:
    rows = []
    for (file, epsilon), some in groups(runs, "file", "epsilon"):
        own = tables.filter(file=file, epsilon=epsilon)
        counted = [f"{(some['verdict'] == level).sum()}" for level in ("publish", "look closer", "do not publish")]
        rows.append(
            [str(file), f"{epsilon:g}", *counted, f"{own['largest_off'].max():.1f}", f"{share_inside(own):.0%}"]
        )
    note = "How many releases had each verdict, beside the largest difference of any figure and the share inside."
    heads = "file | ε | publish | look closer | do not publish | largest difference | inside"
    return note + "\n\n" + table(heads, "lrrrrrr", rows)


def seconds(runs: pl.DataFrame) -> str:
    rows = [
        [str(file), *(f"{some[f'seconds_{step}'].median():.1f}" for step in STEPS)]
        for (file,), some in groups(runs.drop_nulls("seconds_fitting"), "file")
    ]
    note = "Processor seconds of each step, the median of the runs; fitting and files include compilation."
    return note + "\n\n" + table("file | " + " | ".join(STEPS), "lrrrr", rows)


if __name__ == "__main__":
    main()
