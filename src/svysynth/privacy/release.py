"""Release: what may be published. It cannot be made without a charge, and the public files are made from it alone.

Everything in it is made from synthetic surveys or noisy sums and from public facts. Numbers are rounded to a stated
number of digits, so that no digit says more than was paid for. Tables from synthetic data are computed from the rounded
microdata or from public draws, so that anyone can compute them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from types import MappingProxyType

import numpy as np
import polars as pl

from svysynth.core.errors import shown
from svysynth.core.notebook import Html, card
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.whole import Spec
from svysynth.estimation.combining import SMOOTHED
from svysynth.estimation.layout import html_tables, legend
from svysynth.privacy.accounting import epsilon_text, millionths
from svysynth.privacy.guarantee import Guarantee
from svysynth.privacy.ledger import Charge
from svysynth.privacy.tamper_marks import Anchor
from svysynth.survey.answers import Variable, variable_of
from svysynth.survey.design import Design
from svysynth.survey.domains import PublicDomain
from svysynth.survey.survey import Survey, SurveyInMemory

MICRODATA_DIGITS = 8
TABLE_DIGITS = 10
"""Significant digits of what is published."""
PREVIEW = 1_000_000
"""Rows of a synthetic file that reports look at."""
MOST_RECORDS_AS_TEXT = 1_000_000
NOT_FOR_RELEASE = "NOT FOR RELEASE: made with a seed, which undoes the protection."
COUNTS = ("id", "n")
"""Columns that are whole numbers already."""
NO_DOMAINS: Mapping[str, PublicDomain] = MappingProxyType({})
STAMP = "NOT-FOR-RELEASE-"
"""What the names of public files begin with where the run had a seed."""


@dataclass(frozen=True)
class NotCharged:
    """Stands in for the charge of a run with a seed: nothing was paid, and nothing of it may be published."""


@dataclass(frozen=True, eq=False)
class Release:
    """Tables, synthetic files where there are any, and what is promised about both."""

    charge: Charge | NotCharged
    guarantee: Guarantee
    spec: Spec
    levels: Mapping[str, Sequence[str]]
    """The labels of every public column, in order."""
    records: int
    tables: pl.DataFrame
    microdata: tuple[Survey, ...] = ()
    """The synthetic surveys, rounded as they are published."""
    notes: tuple[str, ...] = ()
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    """Further public files that the mechanism gives out, by name."""
    created: date = field(default_factory=date.today)
    domains: Mapping[str, PublicDomain] = field(default_factory=dict)
    """The domains that tables may be restricted to, by the name of their column."""

    def __post_init__(self) -> None:
        promised = self.guarantee.charged
        if not isinstance(self.charge, Charge | NotCharged) or promised is None or self.guarantee.kind == "none":
            raise TypeError("a release needs a guarantee and the charge that paid for it")
        if isinstance(self.charge, Charge) and self.charge.accounting != self.guarantee.accounting:
            raise ValueError("the charge is of another kind than the promise")
        if isinstance(self.charge, Charge) and self.charge.millionths < millionths(promised):
            raise ValueError("the charge does not cover what is promised")
        if len(self.microdata) != self.guarantee.datasets:
            raise ValueError("the guarantee is for another number of synthetic files")

    def __repr__(self) -> str:
        if isinstance(self.charge, NotCharged):
            return f"{NOT_FOR_RELEASE} Not charged to a budget: {self._contents}"
        return f"Release of {shown(self.title)}: {self._contents}; {_paid(self.charge)}"

    def _repr_html_(self) -> Html:
        """What is promised, what was charged, and the tables; for a run with a seed no numbers are shown."""
        if isinstance(self.charge, NotCharged):
            facts = {"not charged to a budget": self._contents}
            return card(f"Trial run: {self.title}", warning=NOT_FOR_RELEASE, facts=facts)
        facts = {"charged": _paid(self.charge), "records": f"{self.records:,}", "contents": self._contents}
        facts |= {"also public": ", ".join(self.attachments)} if self.attachments else {}
        return card(
            f"Release: {self.title}",
            sentences=(*self.guarantee.sentences(), "Only public/ may be published, and only if the verdict allows."),
            facts=facts,
            tables=html_tables(self.tables, self.spec.survey.variable_labels),
            footnote=legend(self.spec.estimation, self.tables),
        )

    @property
    def _contents(self) -> str:
        files = f"{len(self.microdata):,} synthetic files ({', '.join(self.endings)}) and "
        return f"{files if self.microdata else ''}{self.tables.height:,} rows of tables"

    @property
    def seeded(self) -> bool:
        """Whether the run had a seed, which undoes the protection."""
        return isinstance(self.charge, NotCharged)

    @property
    def anchor(self) -> Anchor | None:
        """The ledger's entry that paid for the release."""
        return self.charge.anchor if isinstance(self.charge, Charge) else None

    def file_name(self, name: str) -> str:
        """The name of a public file; with a seed, every name begins with a stamp."""
        return f"{STAMP}{name}" if self.seeded else name

    @property
    def title(self) -> str:
        """What the release is called."""
        survey = self.spec.survey
        return (
            self.spec.about.title or f"{survey.shown(survey.outcome)} by {', '.join(map(survey.shown, survey.public))}"
        )

    @cached_property
    def previews(self) -> tuple[pl.DataFrame, ...]:
        """Each synthetic file as it is published; of a large file, evenly spaced rows."""
        return tuple(_preview(survey) for survey in self.microdata)

    @property
    def endings(self) -> tuple[str, ...]:
        """The formats of the synthetic files."""
        return endings(self.records)

    @property
    def requested_tables(self) -> tuple[TableSpec, ...]:
        """The tables that the spec asks for."""
        return self.spec.requested_tables


def _paid(charge: Charge) -> str:
    """What was charged for a release, in words."""
    amount = epsilon_text(charge.millionths)
    return f"ε = {amount} ({charge.accounting}), entry {charge.entry} of the ledger"


def rounded(frame: pl.DataFrame, digits: int) -> pl.DataFrame:
    """The frame with every number rounded to this many significant digits."""
    numbers = [name for name, dtype in frame.schema.items() if dtype.is_float() and name not in COUNTS]
    return frame.with_columns(pl.col(numbers).round_sig_figs(digits))


def endings(records: int) -> tuple[str, ...]:
    """The formats of synthetic files with this many records; large files are not written as text."""
    return ("parquet", "csv") if records <= MOST_RECORDS_AS_TEXT else ("parquet",)


def microdata(survey: Survey, start: int, stop: int) -> pl.DataFrame:
    """Rows of a synthetic survey as they are published: labels as text, and ids that are row numbers."""
    return as_published(with_labels_of_answers(survey.rows(start, stop)), start)


def _preview(survey: Survey) -> pl.DataFrame:
    rows = np.arange(min(len(survey), PREVIEW)) * len(survey) // min(len(survey), PREVIEW)
    return as_published(with_labels_of_answers(survey.sample(rows)), 0)


def with_labels_of_answers(survey: SurveyInMemory) -> pl.DataFrame:
    """The columns of a survey, with labels for answers that are levels. Missing amounts are empty."""
    columns = []
    for name, variable in survey.variables.items():
        number = pl.col(name).fill_nan(None)
        if variable.kind == "amount" or name == survey.outcome:  # reports and models take an outcome as a number
            columns.append(number)
        elif variable.kind == "yes/no":
            columns.append(number.replace_strict({1.0: "yes", 0.0: "no"}, return_dtype=pl.String))
        else:
            codes = dict(enumerate(variable.levels))
            columns.append(number.cast(pl.Int64).replace_strict(codes, return_dtype=pl.String))
    return survey.frame.with_columns(columns)


def _as_numbers(frame: pl.DataFrame, outcome: str, variables: Mapping[str, Variable]) -> list[pl.Expr]:
    """The answers of a published file as the numbers of a survey; a label that is not declared is an error."""
    found = []
    for name, variable in variables.items():
        if variable.kind == "yes/no" and name != outcome:
            number = pl.col(name).replace_strict({"yes": 1.0, "no": 0.0}, return_dtype=pl.Float64)
        elif variable.kind == "category":
            number = pl.col(name).cast(pl.Enum(list(variable.levels))).to_physical().cast(pl.Float64)
        else:
            number = pl.col(name).cast(pl.Float64)
        if not variable.may_miss and frame[name].null_count():
            raise ValueError("an answer is missing that cannot be missing")
        found.append(number.fill_null(float("nan")))
    return found


def as_published(frame: pl.DataFrame, start: int) -> pl.DataFrame:
    """Rows of a synthetic survey with labels as text, and with ids that begin at `start` + 1."""
    labels = [name for name, dtype in frame.schema.items() if not dtype.is_float()]
    return frame.with_columns(pl.col(labels).cast(pl.String)).with_row_index("id", offset=start + 1)


def survey_of_microdata(
    frame: pl.DataFrame,
    spec: Spec,
    levels: Mapping[str, Sequence[str]],
    domains: Mapping[str, PublicDomain] = NO_DOMAINS,
) -> Survey:
    """The survey in a published synthetic file, to make tables from it again."""
    strata, cluster = spec.survey.strata, spec.survey.cluster
    columns = dict(levels)
    if strata and strata not in columns:
        columns[strata] = frame[strata].unique().sort().to_list()
    labelled = [pl.col(name).cast(pl.Enum(list(labels))) for name, labels in columns.items()]
    variables = {name: variable_of(name, spec.survey) for name in spec.survey.variables}
    labelled += _as_numbers(frame, spec.survey.outcome, variables)
    labelled += [pl.col(cluster).cast(pl.Int64)] if cluster and cluster not in columns else []
    return SurveyInMemory(
        spec.survey.outcome,
        Design(SMOOTHED, strata, cluster, spec.survey.released_fpc, fpc_public=spec.survey.fpc_public),
        spec.survey.public,
        spec.survey.transform,
        spec.survey.population_total,
        weight_public=spec.survey.weight_public,
        calibration=spec.survey.calibration,
        domain=spec.survey.domain,
        domains=domains,
        variables=variables,
        frame=frame.drop("id").with_columns(labelled),
    )
