"""The audits at length: 10,000 pairs exactly, and whole releases under attack. `make study` writes docs/audit.md.

SVYSYNTH_AUDIT_RUNS says how many releases are made in each world at each ε, 150 without it.
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
    """Markdown: what was attacked, how, and what came out."""
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
Made by `make study` (`tests/evaluation/audit/test_audit_study.py`;
`SVYSYNTH_AUDIT_RUNS` = {runs}). [privacy.md](privacy.md) states the
claims. `svysynth audit exact` and `svysynth audit sampled SPEC` repeat this with other seeds, bounds, ε and numbers of
runs. All data are generated.
"""
EXACT = """
{pairs:,} pairs of samples of 5 to 20 records, every other one adversarial: the rest in one or two places, the record
far off, with an extreme weight, or among them. Global: the noise of tables, and all that noisy sums measure, at ε =
1. Shown is the largest over the pairs of how far what is measured moves over the scale of its noise, which is the
least ε that holds with δ = 0. Asymptotic: the paper's mechanism at Δ_α = 1.8, one draw, for a model of two parameters
on a grid of 2673 points. Shown is the largest over the pairs of the least ε with which (ε, δ) holds both ways, for
three δ, the largest δ at the claimed ε, and the share of pairs for which that exceeds 0.001. It does not promise a
bound for every data set, so nothing is judged, and its ratio at δ = 0 is the grid's, as the likelihood has no bound.
"inf" is beyond what a float can hold.
"""
SAMPLED = """
Two small surveys that differ in one respondent, with the answers that do the most harm, released again and again by
`pipeline.release`, at ε = 0.5, 1 and 2. The white-box attack knows both surveys and sees the noisy sums; its statistic
is the best there is. The black-box attack sees the public folder, of {tables} releases. Half of the runs choose
statistic, threshold and side, the other half counts. Clopper–Pearson lower bounds on ε, each at confidence
{confidence}.
"""
READING = """
Of {rows} bounds {exceeding} exceed their claim. A bound below the claim proves nothing by itself, and those of the
black-box attack say little: with so few releases only frequent events can be told apart.
"""
POWER = """
The same attack on mechanisms of which ε is exactly known: a bit told with randomised response, and a number with
Laplace noise (100,000 runs each).
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
