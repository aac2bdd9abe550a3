"""`svysynth audit`: attack the privacy claims, by exact computation and by sampling. Parse, call, print."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.table import Table
from rich.text import Text

from svysynth.cli.compilation_cache import keep_compiled_programs
from svysynth.cli.console import (
    make_table,
    positive_numbers,
    refuse_table_file,
    say,
    seed_option,
    show,
    spinner,
    streams_of,
)
from svysynth.core.spec.whole import load_spec
from svysynth.survey.files import write_frame

audit = typer.Typer(
    help="Attack the privacy claims: how well can two neighbouring data sets be told apart by their releases?\n\n"
    "Two data sets are neighbours if they differ in one respondent's outcome and weight. All data are generated: "
    "no survey is read and no budget is charged. docs/privacy.md states the claims, docs/audit.md what these audits "
    "found.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the figures to FILE (csv or parquet) too.", show_default=False),
]
Seed = Annotated[
    int | None, seed_option("Repeat the same audit; noise on tables comes from the system and does not repeat.")
]
ASYMPTOTIC = (
    "The asymptotic guarantee is not differential privacy, nor a bound for every data set. Its rows are shown but not "
    "judged: an ε above the claim refutes nothing that was promised. It shows what is not promised."
)
SAMPLED = (
    "A lower bound above the claim would refute it. A lower bound below the claim proves nothing: a better attack, or "
    "more runs, might find more."
)


@audit.command()
def exact(
    pairs: Annotated[
        int,
        typer.Option(min=1, max=1_000_000, help="Pairs of neighbouring data sets; every second pair is adversarial."),
    ] = 500,
    epsilon: Annotated[float, typer.Option(min=0.01, max=100.0, help="ε of the audited global guarantee.")] = 1.0,
    seed: Seed = None,
    out: Out = None,
) -> None:
    """Compute the exact privacy loss on small data sets, and the (ε, δ) that would cover it.

    The global guarantee, of `laplace` and of noisy sums: the change that one respondent makes to the measured sums,
    divided by the scale of their noise, is the largest log ratio that any result can have. The exit code is 1 if it
    exceeds the claim.

    The asymptotic guarantee: each posterior of a model with two parameters on a grid is a finite list of probabilities.
    The largest ratio between the posteriors of two neighbours is therefore exact, and so is the ε needed with δ = 0,
    1e-6 and 1e-3.

    Examples: `svysynth audit exact`, `svysynth audit exact --pairs 10000 --epsilon 3 --out audit.csv`
    """
    refuse_table_file(out)
    keep_compiled_programs()
    from svysynth.evaluation.audit.exact import audit_exact
    from svysynth.evaluation.audit.pairs import make_pairs

    with spinner() as step:
        found = audit_exact(make_pairs(pairs, streams_of(seed)), epsilon, step)
    show(_render_exact(found))
    say(ASYMPTOTIC)
    _finish(found, out)


@audit.command()
def sampled(
    spec_path: Annotated[
        Path,
        typer.Argument(
            metavar="SPEC", help="The spec whose mechanism and bounds are audited.", readable=False, show_default=False
        ),
    ],
    epsilon: Annotated[str, typer.Option(help="Values of ε, separated by commas.")] = "0.5,1,2",
    runs: Annotated[int, typer.Option(min=2, help="Releases of each data set, at each ε.")] = 20,
    records: Annotated[int, typer.Option(min=5, help="Records of the generated survey.")] = 20,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999999, help="Confidence of each lower bound.")] = 0.95,
    seed: Seed = None,
    out: Out = None,
) -> None:
    """Attack whole releases, repeated many times: a lower bound on ε for each attack.

    Generates two small surveys that differ in one respondent, whose answers are the worst case for privacy. Both are
    released many times, in a temporary folder. The white-box attack sees the noisy sums, the black-box attack the
    published files. Half of the runs choose the attack; the other half count how often it succeeds, and Clopper-Pearson
    limits turn the counts into a lower bound on ε. For specs with `mechanism = "laplace"`. The exit code is 1 if a
    lower bound exceeds the claim.

    Example: `svysynth audit sampled doctorates.toml --epsilon 0.5,1,2 --runs 40 --out audit.csv`
    """
    refuse_table_file(out, spec_path)
    keep_compiled_programs()
    from svysynth.evaluation.audit.neighbours import audit_sampled, require_promise

    spec, values = load_spec(spec_path), positive_numbers(epsilon, "--epsilon", "0.5,1,2", largest=100)
    require_promise(spec)
    with tempfile.TemporaryDirectory(prefix="svysynth-audit-") as folder, spinner() as step:
        found = audit_sampled(
            spec,
            values,
            runs,
            Path(folder),
            streams_of(seed),
            records=records,
            confidence=confidence,
            progress=step,
        )
    show(_render_sampled(found))
    say(SAMPLED)
    _finish(found, out)


def _finish(found: pl.DataFrame, out: Path | None) -> None:
    """Write the figures to a file where one was asked for; exit with 1 where a claim does not hold."""
    if out is not None:
        write_frame(found, out)
        say(f"Wrote {out}: {found.height} rows.")
    broken = found.filter(~pl.col("holds").fill_null(value=True)).height
    if broken:
        say(f"A claim does not hold: {broken} rows.", "bold red")
        raise typer.Exit(1)


def _render_exact(found: pl.DataFrame) -> Table:
    table = make_table("Exact privacy loss, the worst over all pairs")
    for name in ("guarantee", "neighbours", "respondent", "pairs", "claimed ε", "δ = 0", "δ = 1e-6", "δ = 1e-3"):
        table.add_column(name, justify="left" if name in ("guarantee", "neighbours", "respondent") else "right")
    for name in ("δ at the claim", "holds"):
        table.add_column(name, justify="right")
    for row in found.iter_rows(named=True):
        needed = [_figure(value, ".4g") for name, value in row.items() if name.startswith("epsilon at")]
        cells = [
            row["guarantee"],
            row["neighbours"],
            row["relation"],
            f"{row['pairs']:,}",
            f"{row['claim']:g}",
            *needed,
        ]
        table.add_row(*map(Text, [*cells, _figure(row["largest delta at claim"], ".2g"), _verdict(row["holds"])]))
    return table


def _render_sampled(found: pl.DataFrame) -> Table:
    level = f"{found['confidence'][0]:.6g}"
    table = make_table(f"Lower bounds on ε, each at confidence {level}")
    names = ("mechanism", "attack", "statistic", "records", "counted", "frequencies", "claimed ε", "found ε")
    for name in (*names, "holds"):
        table.add_column(name, justify="left" if name in ("mechanism", "attack", "statistic") else "right")
    for row in found.iter_rows(named=True):
        seen = f"{row['frequency']:.3f}, {row['other frequency']:.3f}"
        cells = [row["mechanism"], row["attack"], row["statistic"], str(row["records"]), f"{row['counted']:,}"]
        figures = [seen, f"{row['claim']:g}", f"{row['lower bound']:.3f}", _verdict(row["holds"])]
        table.add_row(*map(Text, [*cells, *figures]))
    return table


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _verdict(holds: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not judged"}[holds]
