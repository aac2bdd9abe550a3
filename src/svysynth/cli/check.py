"""`svysynth check`: whether a spec fits its data, and the design as the confidential data show it. No charge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from svysynth.cli.console import INTERNAL_STYLE, SpecPath, say, show, warn, with_survey
from svysynth.core.errors import SurveyError
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import Spec, load_spec
from svysynth.estimation.tables import refuse_lonely, refuse_unmet_totals, tabulate_all
from svysynth.privacy.accounting import epsilon_text
from svysynth.privacy.guarantee import NOT_DIFFERENTIAL_PRIVACY
from svysynth.privacy.ledger import show as show_ledger
from svysynth.publishing.report.terminal import INTERNAL
from svysynth.survey.overview import Overview, overview
from svysynth.survey.survey import Survey

if TYPE_CHECKING:  # it needs JAX, which takes a second to load
    from svysynth.mechanisms.findings import Finding


def check(spec_path: SpecPath) -> None:
    """Validate a spec and its data, and show the design. Nothing is charged.

    It also shows the declared answers, and how many records miss one. What it prints is computed from the confidential
    data and is for internal use.

    Example: `svysynth check doctorates.toml`
    """
    show_design(load_spec(spec_path))


def show_design(spec: Spec) -> None:
    """What `check` prints."""
    with_survey(spec, Path(), lambda survey: _show_design(survey, spec))


def _show_design(survey: Survey, spec: Spec) -> None:
    refuse_lonely(survey, spec.estimation)
    refuse_unmet_totals(survey)
    say(INTERNAL, INTERNAL_STYLE)
    show(render_overview(overview(survey), spec))
    for finding in _findings(survey, spec):
        word, style = ("release would refuse", "bold red") if finding.stops else ("look closer", INTERNAL_STYLE)
        warn(word, finding.line(), style)


def _findings(survey: Survey, spec: Spec) -> list[Finding]:
    """The reasons why a release of this survey would be wrong."""
    from svysynth.mechanisms.base import examine, find_public
    from svysynth.mechanisms.findings import first_stage_alone

    if spec.privacy is None:
        return []
    stopping = [finding for finding in find_public(spec) if finding.stops]
    stages, spec = first_stage_alone(spec.survey), spec.first_stage
    survey = replace(survey, design=survey.design.first_stage)
    direct = tabulate_all(survey, spec.requested_tables, spec.estimation)
    return stopping or [*stages, *examine(survey, spec, direct).findings]


def render_overview(overview: Overview, spec: Spec) -> Table:
    """The design of a survey as two columns."""
    survey = spec.survey
    table = Table(show_header=False, box=box.SIMPLE, title=Text(f"Design of {survey.data.name}"), title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    cells = f"{overview.cells - overview.empty_cells:,} of {overview.cells:,} filled ({' × '.join(survey.public)})"
    transformed = f"log {survey.outcome}" if survey.transform == "log" else survey.outcome
    varies = survey.outcome not in overview.missing and survey.kinds.get(survey.outcome, "amount") == "amount"
    correlation = "one of them does not vary" if overview.correlation is None else f"{overview.correlation:+.2f}"
    lines = {
        "records": f"{overview.records:,}",
        "strata": f"{overview.strata:,} ({survey.strata})" if survey.strata else "none",
        "clusters": f"{overview.clusters:,} ({survey.cluster})" if overview.clusters else "none",
        **({"later stages": "; ".join(", ".join(stage.columns) for stage in survey.later)} if survey.later else {}),
        **(
            {"replicate weights": _replicates(survey)}
            if survey.replicates
            else {"degrees of freedom": f"{overview.degrees_of_freedom:,}"}
        ),
        "cells": cells,
        "smallest cell": f"{overview.smallest_cell:,} record{'s' if overview.smallest_cell > 1 else ''}",
        "sum of weights": f"{overview.sum_of_weights:,.1f}",
        "population total": _population(overview),
        **({"calibration": _calibration(survey.calibration)} if survey.calibration else {}),
        **({f"correlation of {transformed} and log weight": correlation} if varies else {}),
        **({"variables": _variables(survey)} if survey.variables else {}),
        **({"missing answers": _missing(overview)} if overview.missing else {}),
        **({"domain": _domain(overview, spec.survey.domain)} if spec.survey.domain else {}),
        "tables": ", ".join(table.title for table in spec.requested_tables),
        "privacy": _privacy(spec),
        **({"budget": _budget(spec.privacy)} if spec.privacy else {}),
    }
    for name, value in lines.items():
        table.add_row(Text(name), Text(value))
    return table


def _replicates(survey: SurveySpec) -> str:
    assert survey.replicates is not None
    return f"{len(survey.replicates.weights):,} ({survey.replicates.method})"


def _variables(survey: SurveySpec) -> str:
    return ", ".join(f"{name} ({variable.kind})" for name, variable in survey.variables.items())


def _missing(overview: Overview) -> str:
    return ", ".join(f"{name} in {count:,} of {overview.records:,} records" for name, count in overview.missing.items())


def _calibration(calibration: CalibrationSpec) -> str:
    margins = " and ".join(f"{len(margin.totals):,} of {' × '.join(margin.by)}" for margin in calibration.margins)
    return f"{calibration.method}, to totals: {margins}, for a population of {calibration.total:,.10g}"


def _domain(overview: Overview, condition: str) -> str:
    return f"{condition} ({overview.inside:,} of {overview.records:,} records)"


def _population(overview: Overview) -> str:
    if overview.population_total is None or overview.weight_excess is None:
        return "not declared" + ("" if overview.weight_public else " (a release needs it)")
    side = "above" if overview.weight_excess >= 0 else "below"
    return f"{overview.population_total:,.10g} (the sum of weights is {abs(overview.weight_excess):.2%} {side})"


def _privacy(spec: Spec) -> str:
    if spec.privacy is None:
        return "not declared (a release needs it)"
    privacy = spec.privacy
    said = f"{privacy.mechanism}, ε = {privacy.epsilon:g} for {_what(privacy)}; check spends nothing"
    return f"{NOT_DIFFERENTIAL_PRIVACY}: {said} (asymptotic)" if privacy.guarantee == "asymptotic" else said


def _budget(privacy: PrivacySpec) -> str:
    if privacy.budget is None:
        return "not named (a release needs it)"
    try:
        found = show_ledger(privacy.ledger) if privacy.ledger.exists() else []
    except SurveyError:
        return f"{privacy.budget}, whose ledger cannot be read: see `svysynth ledger verify`"
    states = {(state.name, state.accounting): state for state in found}
    state = states.get((privacy.budget, privacy.accounting))
    if state is None:
        return f"{privacy.budget}, which is not open: see `svysynth ledger open --help`"
    return f"{privacy.budget}: ε = {epsilon_text(state.left)} of {epsilon_text(state.total)} is left"


def _what(privacy: PrivacySpec) -> str:
    if not privacy.microdata:
        return "all tables"
    if privacy.guarantee == "global":  # ε is for what was measured, however many files are made from it
        return f"all tables and {privacy.datasets} synthetic file{'s' if privacy.datasets > 1 else ''}"
    return f"{privacy.datasets} data sets"
