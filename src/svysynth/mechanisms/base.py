"""Mechanism: what makes a release. The pipeline, the manifest, verification, reports and the frontier ask it.

The way of a release through a mechanism: `find_public` says what the spec alone rules out, `check` refuses what cannot
be done and `examine` says what the data speak against, both before the charge. `run` calls `pay` with what `guarantee`
promises, before anything is drawn that is going out, and gives back a `Made`. For verification `guarantee` follows
again from the manifest, and `remake` makes the tables again from the public folder. `further` is what else that folder
can give to anybody.
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
from svysynth.core.registry import Member, find_member
from svysynth.core.safe_repr import outlined
from svysynth.core.spec import ModelSpec, PrivacySpec, Spec, SurveySpec, TableSpec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.findings import CLUSTERS, Finding, private_filter
from svysynth.mechanisms.suitability import Examined
from svysynth.privacy.guarantee import Guarantee
from svysynth.privacy.ledger import Charge
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.privacy.release import NotCharged
from svysynth.survey.survey import Survey

Pay = Callable[[Guarantee], Charge | NotCharged]
"""Charges the ledger; when it returns, the charge is on disk. To be called once, before anything is measured."""
Progress = Callable[[str], None]
Rows = list[tuple[str, ...]]
TABLES_AND_REPORT = ("tables.csv", "tables.xlsx", "report.html")
"""The public files that every release has, besides the manifest and the checksums."""


@outlined
class Plot(NamedTuple):
    """A plot that a report is to draw, by name, with what it shows."""

    kind: Literal["violins", "histogram"]
    shown: Mapping[str, Any]


@outlined
class Section(NamedTuple):
    """A part of the internal report, which makes a page of it. All texts are escaped there."""

    contents: tuple[tuple[str, str], ...]
    """Anchor and heading of each of its sections, for the table of contents."""
    template: str
    content: Mapping[str, Any]
    """What the template takes in: texts, rows of texts, plots."""

    @classmethod
    def of_facts(cls, anchor: str, heading: str, text: str, rows: Rows) -> Section:
        """A heading, a sentence or two, and facts by name."""
        content = {"anchor": anchor, "heading": heading, "text": text, "rows": rows}
        return cls(((anchor, heading),), "facts.html", content)


class Evidence(Protocol):
    """How it went, for the internal folder. It may look at confidential data; it is made when it is asked for."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why the draws cannot be trusted; the verdict is then not to publish."""

    def summary(self) -> Rows:
        """Lines for the internal report's summary."""

    def sections(self) -> Sequence[Section]:
        """Its own parts of the internal report."""

    def write(self, folder: Path) -> None:
        """Its own files in the internal folder."""


@outlined
@dataclass(frozen=True, eq=False)
class Made:
    """What a mechanism made, after it was paid for."""

    guarantee: Guarantee
    paid: Charge | NotCharged
    synthetic: Synthetic
    """The synthetic surveys, none where tables alone are made."""
    tables: pl.DataFrame
    evidence: Evidence
    notes: tuple[str, ...] = ()
    """What readers of the release have to know."""
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    """Further public files, by name."""
    records: int | None = None
    """How many records the release says there are; None: as many as the survey has, which is public then."""


@outlined
class Remade(NamedTuple):
    """Tables that were made again from what is public."""

    tables: pl.DataFrame
    source: str
    """What they were made from, such as `synthetic files`, and how many of these there are."""
    number: int
    also: str | None = None
    """What else was made again and compared, in words."""


class Further(Protocol):
    """What can be made from a public folder besides what it has: post-processing, which costs nothing."""

    @property
    def first(self) -> int:
        """The number of the first further synthetic file."""

    @property
    def left(self) -> int:
        """How many further files there can be."""

    def tabulate_all(self, tables: Sequence[TableSpec]) -> pl.DataFrame:
        """Other tables, as if the release had them."""

    def synthetic(self, files: int) -> Synthetic:
        """So many further files, as surveys with the rules by which tables are made from them."""

    def write(self, files: int, folder: Path) -> None:
        """So many further files into a folder."""


class Grid(NamedTuple):
    """The points of a frontier."""

    epsilons: Sequence[float]
    datasets: Sequence[int]
    repeats: int


Try = tuple[float, int, int, pl.DataFrame]
"""ε, the number of data sets (0 where tables do not depend on it), the repeat, and the tables of one try."""


class Mechanism(Protocol):
    """A member of the list. It has no state: what it needs is given to it."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Further packages whose versions the manifest states."""

    @property
    def stated(self) -> tuple[str, ...]:
        """Which of the settings scheme, draws, correction and scales play a part; the manifest states them."""

    @property
    def modelled(self) -> bool:
        """Whether the spec's [model] plays a part; the manifest then states it."""

    def title(self, name: str) -> str:
        """What readers are told of the mechanism, under each of its names."""

    def find_public(self, spec: Spec) -> list[Finding]:
        """What the spec alone shows, before the data are read."""

    def undivided(self, spec: Spec) -> str | None:
        """The setting for which all records are needed at once; None where it works from disk and on a cluster."""

    def reads(self, spec: Spec) -> SurveySpec:
        """The survey's spec, without demands on the data that the mechanism does not make."""

    def check(self, survey: Survey, spec: Spec) -> None:
        """Refuse what cannot be done, before anything is charged."""

    def examine(self, survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
        """What the data say against a release; under a global guarantee none of it stops. `direct`: direct tables."""

    def guarantee(self, survey: SurveySpec | SurveyFacts, privacy: PrivacySpec | PrivacyFacts) -> Guarantee:
        """What is promised and how much is charged for it, from a spec or again from a manifest."""

    def run(self, survey: Survey, spec: Spec, pay: Pay, streams: Streams, progress: Progress) -> Made:
        """Pay, then make tables, and synthetic surveys where it has any."""

    def synthetic(self, surveys: tuple[Survey, ...], name: str, model: ModelSpec) -> Synthetic:
        """Synthetic surveys with the rules by which tables are made from them."""

    def public_files(self, manifest: Manifest) -> tuple[str, ...]:
        """The names of all public files but the manifest and the checksums."""

    def remake(self, public: Path, manifest: Manifest) -> Remade | None:
        """The tables, made again from the public folder; None where nothing public could give them."""

    def further(self, public: Path, manifest: Manifest) -> Further | None:
        """What else can be made from the public folder; None where it would need the survey, and a charge."""

    def tries(
        self, survey: Survey, spec: Spec, name: str, grid: Grid, streams: Streams, progress: Progress
    ) -> Iterator[Try]:
        """Tables at every point of a frontier. Nothing is charged, and nothing of it may go out."""


# --- asking the list ---


def mechanism_of(privacy: PrivacySpec | PrivacyFacts) -> Mechanism:
    """The mechanism that a spec asks for, or that a manifest states."""
    found = find_member(privacy.mechanism, privacy.guarantee)
    if found is None:
        problem = f"'{privacy.guarantee}' is not what the mechanism '{privacy.mechanism}' promises"
        raise SurveyError("spec", "privacy.guarantee", problem, "docs/spec.md lists what there is")
    return load_member(found)


def load_member(member: Member) -> Mechanism:
    """The mechanism of a line of the list."""
    return _load(member.home)


@cache
def _load(home: str) -> Mechanism:
    module, _, name = home.rpartition(".")
    return cast(Mechanism, getattr(import_module(module), name)())


def find_public(spec: Spec) -> list[Finding]:
    """What can be known from the spec alone, before the data are read."""
    if spec.privacy is None:
        return []
    own = mechanism_of(spec.privacy).find_public(spec)
    return [*([CLUSTERS] if spec.survey.cluster else []), *own, *private_filter(spec.survey)]


def examine(survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
    """Ask of the data whether the spec's mechanism suits them."""
    return Examined() if spec.privacy is None else mechanism_of(spec.privacy).examine(survey, spec, direct)


def undivided_setting(spec: Spec) -> str | None:
    """The setting for which a release needs all records at once, if there is one; else it is made from parts."""
    return None if spec.privacy is None else mechanism_of(spec.privacy).undivided(spec)


def refuse_other_machines(spec: Spec) -> None:
    """Stop where an engine of several processes is asked for and could not be used."""
    setting = undivided_setting(spec)
    if setting is not None:
        problem = f"'dask' cannot be used with this '{setting}', for which all records are read at once"
        raise SurveyError("spec", "--engine", problem, "use --engine local")


# --- what members share ---


@dataclass(frozen=True)
class Roles:
    """Which columns a promise protects, and which it takes as public: the fields of a `Guarantee` that say so."""

    confidential: tuple[str, ...]
    public: tuple[str, ...]
    universe: str | None

    @classmethod
    def of(cls, survey: SurveySpec | SurveyFacts) -> Roles:
        """From a spec or a manifest: the outcome, and the weight unless it is public."""
        confidential = (survey.outcome,) if survey.weight_public else (survey.outcome, survey.weight)
        others = (survey.strata, survey.weight if survey.weight_public else None)
        public = tuple(dict.fromkeys([*survey.public, *(column for column in others if column)]))
        return cls(confidential, public, survey.where)
