"""`svysynth constants`: public constants for the guarantee `global`, their reasons, and the effect of bounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table
from rich.text import Text

from svysynth.cli.console import INTERNAL_STYLE, WIDTH_OF_A_PAGE, make_table, say, show
from svysynth.core.errors import SurveyError
from svysynth.core.new_folder import refuse_existing, write_folder
from svysynth.core.registry import find_mechanism
from svysynth.core.spec.whole import Spec
from svysynth.core.transforms import Transform
from svysynth.survey.files import write_frame

if TYPE_CHECKING:
    import polars as pl

    from svysynth.privacy.public_constants import Proposal, Published

FINE_REACHES = tuple(1 + step / 8 for step in range(29))
OUTCOME, SAMPLE, FILE = "Published figures of the outcome", "Published figures of the sample", "Or a public file"
RELEASE, SHOWN = "The release", "What to write"
BOUNDS_LEGEND = (
    "Bias of mean: the bias of the mean of clamped values, as in tables with additive noise. Bias of model: the bias "
    "of the mean of a distribution fitted to them. The noise of `laplace` grows in "
    "proportion to the bounds; that of `fbs` and `fbp` hardly depends on them.\n"
)

SCALES_LEGEND = (
    "These figures hold if the proposed scales are right. Bias of model: the bias of means from sums of clamped "
    "answers. Weighted sums remove a part of this bias; standard errors do not show it. Errors: the expected standard "
    "errors, of sampling and noise together, divided by those with the right scales; the median over all rows of the "
    "tables.\n"
)


def _option(text: str, panel: str, metavar: str = "NUMBER", *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, show_default=False, **more)


SpecPath = Annotated[
    Path | None, typer.Argument(metavar="SPEC", help="A spec, finished or not.", readable=False, show_default=False)
]
Number = float | None
Pair = str | None


def constants(
    spec_path: SpecPath = None,
    mean: Annotated[Number, _option("Its mean.", OUTCOME)] = None,
    median: Annotated[Number, _option("Its median.", OUTCOME)] = None,
    quartiles: Annotated[Pair, _option("Its first and third quartile.", OUTCOME, "LOW,HIGH")] = None,
    deciles: Annotated[Pair, _option("Its first and ninth decile.", OUTCOME, "LOW,HIGH")] = None,
    sd: Annotated[Number, _option("Its standard deviation; needs --mean.", OUTCOME)] = None,
    cv: Annotated[Number, _option("Its coefficient of variation.", OUTCOME)] = None,
    limits: Annotated[
        Pair,
        _option("Its limits: a minimum wage, a top code. They become the bounds.", OUTCOME, "LOW,HIGH", "--range"),
    ] = None,
    explained: Annotated[float, _option("The share of its variance that lies between cells.", OUTCOME, "SHARE")] = 0.0,
    records: Annotated[int | None, _option("n, how many records the sample has.", SAMPLE, "COUNT")] = None,
    population: Annotated[
        Number, _option("N, the population total; by default the spec's population_total.", SAMPLE)
    ] = None,
    weight_range: Annotated[
        Pair, _option("The smallest and the largest plausible weight. They become the bounds.", SAMPLE, "LOW,HIGH")
    ] = None,
    weight_cv: Annotated[Number, _option("The weights' coefficient of variation.", SAMPLE)] = None,
    design_effect: Annotated[Number, _option("Kish's design effect, of the weights alone: 1 + CV².", SAMPLE)] = None,
    weight_explained: Annotated[
        float, _option("The share of the log weights' variance that lies between cells.", SAMPLE, "SHARE")
    ] = 0.0,
    correlation: Annotated[float, _option("A guess, between (log) outcome and log weight.", SAMPLE)] = 0.0,
    standin: Annotated[
        Path | None,
        _option("A public file with SPEC's columns. Never the confidential one.", FILE, "FILE", readable=False),
    ] = None,
    transform: Annotated[
        str | None,
        _option("The scale of the outcome; by default the spec's, or log without one.", RELEASE, "log|identity"),
    ] = None,
    out: Annotated[
        Path | None, _option("A new folder for the lines of the spec, the figures as CSV and a plot.", SHOWN, "DIR")
    ] = None,
) -> None:
    """Propose public constants for the guarantee "global", with reasons, and show the effect of bounds.

    A release with this guarantee needs bounds that are public knowledge, and `frontier --standin` needs a guess of the
    spreads. Taken from the confidential sample, these constants would reveal something about it that ε does not count.
    Here they come from published figures (an earlier report, a related survey, the sampling plan) or from a public
    file, and are printed as lines for the end of the spec.

    One table shows the bias that bounds cause if they cut into the data. Another shows how much accuracy `fbs` and
    `fbp` lose if they take their scales from such constants and these are wrong. SPEC's own data are not opened.
    docs/constants.md says how to choose.

    Examples: `svysynth constants doctorates.toml --quartiles 74000,130000 --records 10355`,
    `svysynth constants doctorates.toml --standin public-2015.csv --out constants`
    """
    from svysynth.privacy.public_constants import Published, load_unfinished

    spec = None if spec_path is None else load_unfinished(spec_path)
    scale = _transform(transform, spec)
    published = Published(
        mean=mean,
        median=median,
        sd=sd,
        cv=cv,
        quartiles=_pair(quartiles, "--quartiles"),
        deciles=_pair(deciles, "--deciles"),
        range=_pair(limits, "--range"),
        explained=explained,
        records=records,
        population=spec.survey.population_total if spec and population is None else population,
        weight_range=_pair(weight_range, "--weight-range"),
        weight_cv=weight_cv,
        design_effect=design_effect,
        weight_explained=weight_explained,
        correlation=correlation,
    )
    if out is not None:
        refuse_existing(out)
    proposal = _propose(spec, standin, published, scale)
    _show(proposal)
    _show_scales(proposal, spec, records)
    if out is not None:
        _write(out, proposal)
        say(f"Wrote {out}: the lines, the figures as CSV, the plot as svg and png.")


def _propose(spec: Spec | None, standin: Path | None, published: Published, scale: Transform) -> Proposal:
    from svysynth.privacy.public_constants import from_published

    if standin is None:
        return from_published(published, scale)
    from svysynth.evaluation.public_file import from_public_file

    return from_public_file(_with_scale(spec, scale), standin, published)


def _with_scale(spec: Spec | None, scale: Transform) -> Spec:
    if spec is None:
        raise SurveyError("spec", "--standin", "needs a spec", "name the spec whose columns the file has")
    return spec.model_copy(update={"survey": spec.survey.model_copy(update={"transform": scale})})


# --- printing and writing ---


def _show(proposal: Proposal) -> None:
    from svysynth.evaluation.clamping import by_bounds

    _print(Text(proposal.source, style=INTERNAL_STYLE))
    _print(Text("Lines for the end of the spec, in place of the bounds and [standin] that it may have:\n"))
    say(proposal.fragment())
    for note in proposal.notes:
        _print(Text(f"Note: {note}\n", style="bold"))
    _print(_bounds_table(by_bounds(proposal), proposal.outcome.transform))
    _print(Text(BOUNDS_LEGEND, style="dim"))


def _show_scales(proposal: Proposal, spec: Spec | None, records: int | None) -> None:
    """Show what a wrong guess of the scales costs, where the spec's mechanism can take them from these constants."""
    privacy = None if spec is None else spec.privacy
    member = None if privacy is None else find_mechanism(privacy.mechanism, privacy.guarantee)
    if spec is None or privacy is None or member is None or not member.scaled:
        return
    if records is None:
        text = 'With --records a table shows what wrong scales cost under privacy.scales = "standin".\n'
        _print(Text(text, style="dim"))
        return
    from svysynth.mechanisms.noisy_sums.measuring.wrong_scales import cost_of_guesses, declared_facts

    facts, tables = declared_facts(spec.survey, records), spec.requested_tables
    cells = f"{len(facts.codes):,} equal cells" if facts.labels else "the whole file (not all levels are declared)"
    of = "mean" if proposal.outcome.transform == "log" else "spread"
    title = f"What wrong scales cost, at ε = {privacy.epsilon:g}, for {cells}; bias in % of the {of}"
    table = make_table(title)
    for name in ("guess", "clamped", "bias of model", "error of means", "of counts"):
        table.add_column(name, justify="left" if name == "guess" else "right")
    for name, clamped, bias, means, counts in cost_of_guesses(proposal, facts, tables, privacy.epsilon).iter_rows():
        table.add_row(*map(Text, [name, _percent(clamped), _percent(bias), f"× {means:.2f}", f"× {counts:.2f}"]))
    _print(table)
    _print(Text(SCALES_LEGEND, style="dim"))


def _bounds_table(bounds: pl.DataFrame, scale: Transform) -> Table:
    of = "mean" if scale == "log" else "spread (weight: of its mean)"
    table = make_table(f"The effect of bounds; biases in % of the {of}")
    for name in ("", "bounds", "clamped", "bias of mean", "bias of model"):
        table.add_column(name, justify="left" if not name else "right")
    for row in bounds.iter_rows(named=True):
        name = row["variable"] if row["reach"] is None else f"  ± {row['reach']:g} spreads"
        ends = f"{_short(row['low'])} … {_short(row['high'])}"
        shares = (row["share_below"] + row["share_above"], row["bias_of_mean"], row["bias_of_model"])
        table.add_row(
            *map(Text, [name, ends, *(_percent(share) for share in shares)]),
            style="bold" if row["reach"] is None else None,
        )
    return table


def _print(renderable: Table | Text) -> None:
    """Print to the width of a page, because people paste this output into reports."""
    show(renderable, WIDTH_OF_A_PAGE)


def _short(value: float) -> str:
    """To three significant digits, without an exponent where that is short."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3f}%" if abs(share) >= 5e-6 else "0%"


def _write(out: Path, proposal: Proposal) -> None:
    from svysynth.evaluation.clamping import by_bounds
    from svysynth.evaluation.constants_picture import draw_bounds

    bounds = by_bounds(proposal, FINE_REACHES)

    def build(building: Path) -> None:
        (building / "constants.toml").write_text(proposal.fragment(), encoding="utf-8")
        write_frame(bounds, building / "bounds.csv")
        for ending in ("svg", "png"):
            draw_bounds(bounds, building / f"constants.{ending}", proposal.source)

    write_folder(out, build)


# --- what was typed ---


def _transform(text: str | None, spec: Spec | None) -> Transform:
    if text not in (None, "log", "identity"):
        raise SurveyError("spec", "--transform", "is not a known scale", "use log or identity")
    return cast(Transform, text or (spec.survey.transform if spec else "log"))


def _pair(text: str | None, option: str) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise SurveyError("spec", option, "is not a pair of numbers", "write it like 30000,90000") from None
    return low, high
