"""The long audits: 10,000 pairs exactly, and whole releases under attack. `make study` writes docs/audit.md.

SVYSYNTH_AUDIT_RUNS says how many releases are made in each world at each ε; the default is 150.
"""

import os
import textwrap
import time

import polars as pl
import pytest

from places import DOCS
from svysynth.core.streams import Streams
from svysynth.evaluation.audit.exact import audit_exact, make_pairs
from svysynth.evaluation.audit.neighbours import audit_sampled
from test_attack import AUDITED, EPSILONS, TIGHT, tight_bound

PAIRS = 10_000
RUNS = int(os.environ.get("SVYSYNTH_AUDIT_RUNS", "150"))
CONFIDENCE = 0.95


@pytest.mark.study
def test_the_audits_at_length(tmp_path):
    start = time.process_time()
    exact = audit_exact(make_pairs(PAIRS, Streams.seeded(1)))
    seconds = {"exact": time.process_time() - start}
    start = time.process_time()
    sampled = audit_sampled(AUDITED, EPSILONS, RUNS, tmp_path, Streams.seeded(2), confidence=CONFIDENCE)
    seconds["laplace"] = time.process_time() - start
    before = (DOCS / "audit.md").read_text(encoding="utf-8")
    review = before[before.index("## A hostile review") :]  # written by people
    (DOCS / "audit.md").write_text(page(exact, sampled, seconds) + "\n" + review, encoding="utf-8")
    judged = exact.filter(pl.col("holds").is_not_null())
    assert judged["guarantee"].n_unique() == 2
    assert judged["holds"].all()
    assert sampled["holds"].all()


# --- the page ---


def page(exact, sampled, seconds):
    """The page in Markdown: what was attacked, how, and with which results."""
    exact_rows = "\n".join(exact_row(row) for row in exact.iter_rows(named=True))
    sampled_rows = "\n".join(sampled_row(row) for row in sampled.iter_rows(named=True))
    tight_rows = "\n".join(tight_row(name) for name in TIGHT)
    exceeding = sampled.filter(~pl.col("holds")).height or "none"
    times = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
    return f"""# The privacy claims under attack

{paragraph(INTRODUCTION.format(runs=RUNS))}

## Exact

{paragraph(EXACT.format(pairs=PAIRS))}

| guarantee | neighbours | respondent | pairs | claim | δ = 0 | δ = 1e-6 | δ = 1e-3 | δ at the claim | δ > 0.001 |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|
{exact_rows}

## Whole releases

{paragraph(SAMPLED.format(tables=RUNS, confidence=CONFIDENCE))}

| mechanism | records | attack | statistic | counted | frequencies | claimed ε | lower bound |
|---|--:|---|---|--:|--:|--:|--:|
{sampled_rows}

{paragraph(READING.format(exceeding=exceeding, rows=sampled.height))}

## What the attack can find

{paragraph(POWER)}

| mechanism | {" | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)} |
|---|--:|--:|--:|
{tight_rows}

## Cost

{paragraph(COST.format(times=times))}
"""


INTRODUCTION = """
`make study` makes this page (`tests/evaluation/audit/test_audit_study.py`; `SVYSYNTH_AUDIT_RUNS` = {runs}). It has the
results of attacks on the privacy claims that [privacy.md](privacy.md) states. The commands `svysynth audit exact` and
`svysynth audit sampled SPEC` repeat the attacks with other seeds, bounds, ε and numbers of runs. ε is the privacy loss:
smaller is safer. All data are generated.
"""
EXACT = """
There are {pairs:,} pairs of samples of 5 to 20 records. Every other pair is adversarial: all records but one lie in one
or two places, and that record is far off, has an extreme weight, or is among the others. Global: the noise of tables,
and all that noisy sums measure, at ε = 1. For each pair the audit divides how far the measured sums move by the scale
of their noise; the table shows the largest such ratio over the pairs, which is the smallest ε that holds with δ = 0.
Asymptotic: the paper's mechanism at Δ_α = 1.8 with one draw, for a model of two parameters on a grid of 2673 points.
For three values of δ the table shows the largest over the pairs of the smallest ε with which (ε, δ) holds in both
directions. It also shows the largest δ at the claimed ε, and the share of pairs for which this δ exceeds 0.001. The
asymptotic mechanism does not promise a bound for every data set, so its results are not judged, and its ratio at δ = 0
depends on the grid, as the likelihood has no bound. "inf" is beyond what a float can hold.
"""
SAMPLED = """
Two small surveys differ in one respondent, whose answers are those that do the most harm. Both are released again and
again by `pipeline.release`, at ε = 0.5, 1 and 2. The white-box attack knows both surveys and sees the noisy sums; its
statistic is the best there is. The black-box attack sees the public folder, of {tables} releases. Half of the runs are
used to choose statistic, threshold and side, and the event is counted in the other half. *Frequencies* are those of the
event for the two surveys. The last column has Clopper–Pearson lower bounds on ε, each at confidence {confidence}.
"""
READING = """
Of {rows} bounds {exceeding} exceed their claim. A bound below the claim proves nothing by itself. The bounds of the
black-box attack are weak evidence: with so few releases only frequent events can be told apart.
"""
POWER = """
The table shows the lower bounds that the same attack finds for mechanisms whose ε is exactly known: a bit told with
randomised response, and a number with Laplace noise (100,000 runs each).
"""
COST = "Seconds of processor time: {times}."


def figure(value, form):
    return "–" if value is None else format(value, form)


def exact_row(row):
    needed = [figure(value, ".4g") for name, value in row.items() if name.startswith("epsilon at")]
    delta = figure(row["largest delta at claim"], ".2g")
    share = figure(row["share above 0.001"], ".4f")
    cells = [row["guarantee"], row["neighbours"], row["relation"], f"{row['pairs']:,}", f"{row['claim']:g}", *needed]
    return "| " + " | ".join([*cells, delta, share]) + " |"


def sampled_row(row):
    seen = f"{row['frequency']:.3f}, {row['other frequency']:.3f}"
    cells = [row["mechanism"], str(row["records"]), row["attack"], row["statistic"], f"{row['counted']:,}"]
    return "| " + " | ".join([*cells, seen, f"{row['claim']:g}", f"{row['lower bound']:.3f}"]) + " |"


def tight_row(name):
    return f"| {name} | " + " | ".join(f"{tight_bound(name, epsilon).epsilon:.3f}" for epsilon in EPSILONS) + " |"


def paragraph(text):
    return textwrap.fill(" ".join(text.split()), 120)
