"""Mechanism: how a release is made. The pipeline, the manifest, verification, reports and the frontier all call it.

A release passes through a mechanism in this order. `find_public` says what the spec alone rules out. Before the charge,
`check` refuses what cannot be done, and `examine` says what in the data speaks against a release. `run` calls `pay`
with the promise of `guarantee` before anything is drawn that will be released, and returns a `Made`. For verification,
`guarantee` is derived again from the manifest, and `remake` makes the tables again from the public folder. `further` is
what else anybody can make from that folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.registry import ListedMechanism, find_mechanism
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import ModelSpec, Spec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.findings import (
    AVERAGE,
    Finding,
    first_stage_alone,
    no_calibration,
    no_clusters,
    no_other_answers,
    no_quantiles,
    private_filter,
    unlike_an_amount,
    whatever_the_mechanism,
)
from svysynth.mechanisms.suitability import Examined
from svysynth.privacy.guarantee import Guarantee
from svysynth.privacy.ledger import Charge
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.privacy.release import NotCharged
from svysynth.survey.survey import Survey

Pay = Callable[[Guarantee], Charge | NotCharged]
"""Charges the ledger. When it returns, the charge is on disk. It is called once, before anything is measured."""
Progress = Callable[[str], None]
Rows = list[tuple[str, ...]]
TABLES_AND_REPORT = ("tables.csv", "tables.xlsx", "report.html")
"""The public files that every release has, besides the manifest and the checksums."""


@outlined
class Plot(NamedTuple):
    """A plot that a report is to draw: the kind of plot, and the data that it shows."""

    kind: Literal["violins", "histogram"]
    shown: Mapping[str, Any]


@outlined
class Section(NamedTuple):
    """A part of the internal report. The report turns it into a page and escapes all texts."""

    contents: tuple[tuple[str, str], ...]
    """The anchor and the heading of each of its sections, for the table of contents."""
    template: str
    content: Mapping[str, Any]
    """What the template shows: texts, rows of texts, plots."""

    @classmethod
    def of_facts(cls, anchor: str, heading: str, text: str, rows: Rows) -> Section:
        """A section with a heading, a sentence or two, and a table of named facts."""
        content = {"anchor": anchor, "heading": heading, "text": text, "rows": rows}
        return cls(((anchor, heading),), "facts.html", content)


class Evidence(Protocol):
    """How the release was made, for the internal folder. It may look at confidential data, and is made on request."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why the release would be wrong, as sentences without a full stop: the verdict is then not to publish."""

    def summary(self) -> Rows:
        """The lines for the summary of the internal report."""

    def sections(self) -> Sequence[Section]:
        """The mechanism's own parts of the internal report."""

    def write(self, folder: Path) -> None:
        """Write the mechanism's own files into the internal folder."""


@outlined
@dataclass(frozen=True, eq=False)
class Made:
    """What a mechanism made, after the charge."""

    guarantee: Guarantee
    paid: Charge | NotCharged
    synthetic: Synthetic
    """The synthetic surveys; none if the mechanism makes tables only."""
    tables: pl.DataFrame
    evidence: Evidence
    notes: tuple[str, ...] = ()
    """What readers of the release need to know."""
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    """Further public files, by name."""
    records: int | None = None
    """The number of records that the release states. None: the survey's own number, which is public then."""


@outlined
class Remade(NamedTuple):
    """Tables that were made again from the public folder."""

    tables: pl.DataFrame
    source: str
    """What the tables were made from, such as `synthetic files`."""
    number: int
    """How many of these there are."""
    also: str | None = None
    """In words, what else was made again and compared."""


class Further(Protocol):
    """What else can be made from a public folder. It is post-processing and costs no privacy."""

    @property
    def first(self) -> int:
        """The number of the first further synthetic file."""

    @property
    def left(self) -> int:
        """How many further files there can be."""

    def tabulate_all(self, tables: Sequence[TableSpec]) -> pl.DataFrame:
        """Make other tables, in the form of the release's own tables."""

    def synthetic(self, files: int) -> Synthetic:
        """Make this number of further files, as surveys with the rules for making tables from them."""

    def write(self, files: int, folder: Path) -> None:
        """Write this number of further files into a folder."""


class Grid(NamedTuple):
    """The points of a frontier."""

    epsilons: Sequence[float]
    datasets: Sequence[int]
    repeats: int


Try = tuple[float, int, int, pl.DataFrame]
"""One point of a frontier: ε, the number of data sets (0 where tables do not depend on it), the repeat, the tables."""


class Mechanism(Protocol):
    """A member of the list of mechanisms. It has no state: what it needs is passed to its methods."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that it uses besides the usual ones; the manifest states their versions."""

    @property
    def stated(self) -> tuple[str, ...]:
        """Which of the settings scheme, draws, correction and scales it uses; the manifest states these."""

    @property
    def modelled(self) -> bool:
        """Whether it uses the section [model] of the spec; if so, the manifest states that section."""

    def title(self, name: str) -> str:
        """The description of the mechanism for readers of a release, under each of its names."""

    def find_public(self, spec: Spec) -> list[Finding]:
        """What speaks against a release from the spec alone, before the data are read."""

    def undivided(self, spec: Spec) -> str | None:
        """The setting that needs all records in memory; None if it can work from disk and on a cluster."""

    def reads(self, spec: Spec) -> SurveySpec:
        """The spec of the survey, without requirements on the data that the mechanism does not have."""

    def check(self, survey: Survey, spec: Spec) -> None:
        """Refuse what cannot be done, before anything is charged."""

    def examine(self, survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
        """What the data say against a release. Under a global guarantee no finding stops. `direct`: direct tables."""

    def guarantee(self, survey: SurveySpec | SurveyFacts, privacy: PrivacySpec | PrivacyFacts) -> Guarantee:
        """What is promised and how much is charged for it, from a spec, or later again from the manifest."""

    def run(self, survey: Survey, spec: Spec, pay: Pay, streams: Streams, progress: Progress) -> Made:
        """Pay, then make tables, and synthetic surveys if the mechanism makes them."""

    def synthetic(self, surveys: tuple[Survey, ...], name: str, model: ModelSpec) -> Synthetic:
        """Synthetic surveys with the rules for making tables from them."""

    def public_files(self, manifest: Manifest) -> tuple[str, ...]:
        """The names of all public files except the manifest and the checksums."""

    def remake(self, public: Path, manifest: Manifest) -> Remade | None:
        """The tables, made again from the public folder; None if the public folder does not determine them."""

    def further(self, public: Path, manifest: Manifest) -> Further | None:
        """What else can be made from the public folder; None if that would need the survey and a charge."""

    def tries(
        self, survey: Survey, spec: Spec, name: str, grid: Grid, streams: Streams, progress: Progress
    ) -> Iterator[Try]:
        """Tables at every point of a frontier. Nothing is charged, and none of these tables may be released."""


# --- looking mechanisms up ---


def mechanism_of(privacy: PrivacySpec | PrivacyFacts) -> Mechanism:
    """The mechanism that a spec names, or that a manifest states."""
    found = find_mechanism(privacy.mechanism, privacy.guarantee)
    if found is None:
        problem = f"'{privacy.guarantee}' is not a guarantee of the mechanism '{privacy.mechanism}'"
        remedy = "use one of the guarantees that docs/spec.md lists for it"
        raise SurveyError("spec", "privacy.guarantee", problem, remedy)
    return load_mechanism(found)


def load_mechanism(member: ListedMechanism) -> Mechanism:
    """The mechanism of one line of the list."""
    return _load(member.home)


@cache
def _load(home: str) -> Mechanism:
    module, _, name = home.rpartition(".")
    return cast(Mechanism, getattr(import_module(module), name)())


def find_public(spec: Spec) -> list[Finding]:
    """What speaks against a release from the spec alone, before the data are read."""
    stages, spec = first_stage_alone(spec.survey), spec.first_stage
    if spec.privacy is None:
        return []
    mechanism = mechanism_of(spec.privacy)
    return [
        *stages,
        *whatever_the_mechanism(spec.survey),
        *([AVERAGE] if spec.estimation.lonely == "average" else []),
        *unsupported(spec, spec.privacy.mechanism, spec.privacy.guarantee),
        *mechanism.find_public(spec),
        *private_filter(spec.survey),
    ]


def unsupported(spec: Spec, name: str, promise: str) -> list[Finding]:
    """What a mechanism cannot take into account, as its entry in the list says."""
    member, who = find_mechanism(name, promise), f"the mechanism '{name}' ({promise})"
    if member is None:
        return []
    answers = [
        *unlike_an_amount(spec.survey),
        *no_other_answers(spec.requested_tables, spec.survey.outcome, spec.survey.public),
    ]
    clusters = [] if member.clusters else no_clusters(spec.survey.cluster, who)
    calibration = [] if member.calibration else no_calibration(spec.survey, who)
    quantiles = [] if member.quantiles else no_quantiles(spec.requested_tables, who)
    return [*([] if member.answers else answers), *clusters, *calibration, *quantiles]


def examine(survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
    """Find out whether the mechanism of the spec suits the data."""
    return Examined() if spec.privacy is None else mechanism_of(spec.privacy).examine(survey, spec, direct)


def undivided_setting(spec: Spec) -> str | None:
    """The setting for which a release needs all records at once; None if it can be made from parts of the records."""
    return None if spec.privacy is None else mechanism_of(spec.privacy).undivided(spec)


def refuse_other_machines(spec: Spec) -> None:
    """Stop if an engine with several processes is requested but cannot be used."""
    setting = undivided_setting(spec)
    if setting is not None:
        problem = f"'dask' cannot be used with this '{setting}', which needs all records at once"
        raise SurveyError("spec", "--engine", problem, "use --engine local")


# --- what mechanisms share ---


@dataclass(frozen=True)
class Roles:
    """Which columns a guarantee protects and which it takes as public: the fields of `Guarantee` that state this."""

    confidential: tuple[str, ...]
    public: tuple[str, ...]
    universe: str | None
    cluster: str | None

    @classmethod
    def of(cls, survey: SurveySpec | SurveyFacts) -> Roles:
        """From a spec or a manifest: the outcome is confidential, and so is the weight unless it is public."""
        confidential = (survey.outcome,) if survey.weight_public else (survey.outcome, survey.weight)
        others = (survey.strata, survey.released_fpc, survey.weight if survey.weight_public else None)
        public = tuple(dict.fromkeys([*survey.public, *(column for column in others if column)]))
        return cls(confidential, public, survey.where, survey.cluster)
