"""The long audits: exact audits of 10,000 pairs of samples, and attacks on whole releases. Writes docs/audit.md.

    python bench/study_of_audits.py
    python bench/study_of_audits.py --pairs 20 --runs 2 --out FOLDER

`--runs` is how many releases are made of each of the two surveys at each ε. The program measures lower bounds on ε: no
bound may exceed the ε that is claimed. The last part of the page, which is written by hand, stays as it is.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from criteria import DOCS, judge, paragraph, settings, write
from svysynth.core.spec.whole import parse_spec
from svysynth.core.streams import Streams
from svysynth.evaluation.audit.attack import attack
from svysynth.evaluation.audit.exact import audit_exact
from svysynth.evaluation.audit.neighbours import audit_sampled
from svysynth.evaluation.audit.pairs import make_pairs

PAIRS = 10_000
RUNS = 150
CONFIDENCE = 0.95
EPSILONS = (0.5, 1.0, 2.0)
SPEC = """
[survey]
data = "nowhere.csv"
outcome = "income"
weight = "weight"
public = ["cell"]
population_total = 1000

[privacy]
mechanism = "laplace"
guarantee = "global"
epsilon = 1.0
bounds = { outcome = [100.0, 1000000.0], weight = [0.1, 200.0] }
"""
AUDITED = parse_spec(SPEC)
REVIEW = "## A hostile review"


def main(given=None):
    chosen = settings(__doc__, given, pairs=PAIRS, runs=RUNS)
    start = time.process_time()
    exact = audit_exact(make_pairs(chosen.pairs, Streams.seeded(1)))
    seconds = {"exact": time.process_time() - start}
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        streams = Streams.seeded(2)
        sampled = audit_sampled(AUDITED, EPSILONS, chosen.runs, Path(folder), streams, confidence=CONFIDENCE)
    seconds["laplace"] = time.process_time() - start
    before = (DOCS / "audit.md").read_text(encoding="utf-8")
    review = before[before.index(REVIEW) :]
    write(chosen.out / "audit.md", page(exact, sampled, chosen.pairs, chosen.runs, seconds) + "\n" + review)
    return judge(criteria(exact, sampled))


def criteria(exact, sampled):
    judged = exact.filter(pl.col("holds").is_not_null())
    kinds = judged["guarantee"].n_unique()
    yield kinds == 5, f"{kinds} guarantees are judged exactly, not 5"
    for row in judged.iter_rows(named=True):
        where = f"{row['guarantee']}, {row['neighbours']} neighbours, {row['relation']}"
        yield row["holds"], f"{where}: the privacy loss exceeds the claim, ε = {row['claim']:g}"
    for row in sampled.iter_rows(named=True):
        where = f"{row['mechanism']}, {row['attack']}"
        yield row["holds"], f"{where}: the lower bound {row['lower bound']:.3f} exceeds the claim, ε = {row['claim']:g}"


# --- mechanisms whose ε is known ---


def randomised_response(epsilon, runs, generator):
    """A bit that is reported truthfully with odds e^ε."""
    lie = 1 / (1 + np.exp(epsilon))
    return tuple((generator.random((runs, 1)) < share).astype(float) for share in (1 - lie, lie))


def laplace_noise(epsilon, runs, generator):
    return tuple(value + generator.laplace(0, 1 / epsilon, (runs, 1)) for value in (1.0, 0.0))


TIGHT = {"randomised response": randomised_response, "Laplace noise": laplace_noise}


def tight_bound(name, epsilon):
    return attack(*TIGHT[name](epsilon, 100_000, np.random.default_rng(7)), ["the result"])


# --- the page ---


def page(exact, sampled, pairs, runs, seconds):
    """The page in Markdown: what was attacked, in which way, and the results."""
    exact_rows = "\n".join(exact_row(row) for row in exact.iter_rows(named=True))
    sampled_rows = "\n".join(sampled_row(row) for row in sampled.iter_rows(named=True))
    tight_rows = "\n".join(tight_row(name) for name in TIGHT)
    exceeding = sampled.filter(~pl.col("holds")).height or "none"
    times = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
    return f"""# The privacy claims under attack

{paragraph(INTRODUCTION)}

## Exact

{paragraph(EXACT.format(pairs=pairs))}

| guarantee | neighbours | respondent | pairs | claim | δ = 0 | δ = 1e-6 | δ = 1e-3 | δ at the claim | δ > 0.001 |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|
{exact_rows}

## Whole releases

{paragraph(SAMPLED.format(tables=runs, confidence=CONFIDENCE))}

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
`make study` makes this page (`bench/study_of_audits.py`). It has the results of attacks on the privacy claims that
[privacy.md](privacy.md) states. The commands `svysynth audit exact` and `svysynth audit sampled SPEC` repeat the
attacks with other seeds, bounds, ε and numbers of runs. ε is the privacy loss: smaller is safer. All data are
generated.
"""
EXACT = """
There are {pairs:,} pairs of samples of 5 to 20 records. Every other pair is adversarial: all records but one lie in one
or two places, and that record is far off, has an extreme weight, or is among the others. The rows *global* are about
the noise of tables, and about all that noisy sums measure, at ε = 1. For each pair the audit divides how far the
measured sums move by the scale of their noise; the table shows the largest such ratio over the pairs, which is the
smallest ε that holds with δ = 0. In the rows *global, tables of clusters* the whole sample is one cluster, and how
alike its records are is measured too. In the rows *global, whole clusters* it is one cluster as well, all answers are
replaced at once, and each of its k records has noise for ε/k. In the rows *global, clusters, public weights* the whole
sample is one cluster too, weights are public, and one outcome differs.
The rows *asymptotic* are about the paper's mechanism at Δ_α = 1.8 with one draw, for a model of two parameters on a
grid of 2673 points. For three values of δ the audit finds for each pair the smallest ε with which (ε, δ) holds in both
directions; the table shows the largest of these ε over the pairs. It also shows the largest δ at the claimed ε, and the
share of pairs for which this δ exceeds 0.001. The asymptotic mechanism does not promise a bound for every data set, so
its results are not judged. Its ratio at δ = 0 depends on the grid, because its likelihood has no bound. "inf" stands
for numbers that are too large for a float.
"""
SAMPLED = """
Two small surveys differ in one respondent, whose answers are the worst case for privacy. Both surveys are protected
again and again, at ε = 0.5, 1 and 2. The white-box attack knows both surveys and sees the noisy sums; its statistic is
the most powerful one. The black-box attack sees the public folders of {tables} releases of each survey, made by
`pipeline.release`. An attack looks for an event that is more frequent for one survey than for the other: a statistic
lies above a threshold, or below it. Half of the runs are used to choose statistic, threshold and side, and the event is
counted in the other half. *Frequencies* are those of the event for the two surveys. The last column has Clopper–Pearson
lower bounds on ε, each at confidence {confidence}.
"""
READING = """
Of {rows} bounds {exceeding} exceed their claim. A bound below the claim proves nothing by itself. The bounds of the
black-box attack are weak evidence: so few releases can show differences only between frequent events.
"""
POWER = """
The table shows the lower bounds that the same attack finds for mechanisms whose ε is exactly known: a bit reported with
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


if __name__ == "__main__":
    sys.exit(main())
