"""Manifest: what a release says of itself, for machines. docs/manifest.schema.json is its published JSON schema.

It holds public facts only: the promise, the public part of the spec, versions, checksums and the ledger's entry. With
it and the other public files anyone can make the tables again, where the mechanism allows it (`verification.py` does).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from svysynth.core.registry import mechanism_names
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec, Protected, Scales, Scheme, Unit
from svysynth.core.spec.variables import Kind
from svysynth.core.spec.whole import AboutSpec, ModelSpec, Spec, StandInSpec
from svysynth.core.transforms import Transform
from svysynth.privacy.guarantee import Guarantee
from svysynth.survey.domains import PublicDomain, domain_column

FORMAT = 3
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DomainFacts(_Part):
    """A domain that tables are restricted to, as levels of public columns."""

    condition: str
    """The condition of the spec, on the codes of the file."""
    columns: tuple[str, ...]
    parts: tuple[dict[str, tuple[str, ...]], ...]
    """Records in any of these parts are inside. A part has the named levels of each column; all levels of others."""


class VariableFacts(_Part):
    """An answer besides the outcome, or the outcome if it was declared as an answer."""

    kind: Kind
    levels: tuple[str, ...] = ()
    """The levels of a category."""
    bounds: tuple[float, float] | None = None
    """The public bounds of an amount."""
    may_miss: bool = False

    def settings(self) -> dict[str, Any]:
        """Its section in a spec whose data are a synthetic file."""
        match self.kind:
            case "category":
                return {"kind": self.kind, "levels": self.levels}
            case "yes/no":
                return {"kind": self.kind, "yes": ["yes", "1"], "no": ["no", "0"]}
            case "amount":
                return {"kind": self.kind} if self.bounds is None else {"kind": self.kind, "bounds": self.bounds}


class SurveyFacts(_Part):
    """The public facts of the survey."""

    outcome: str
    transform: Transform
    weight: str
    weight_public: bool
    """Whether the weights are declared public, and kept as they are."""
    strata: str | None
    cluster: str | None = None
    """The column of clusters; None if there are none. Their numbers in synthetic files are new."""
    fpc: str | None = None
    """The column of the finite population correction of each stratum; None if there is none."""
    public: tuple[str, ...]
    where: str | None
    """The condition that says which records take part; None where all do."""
    universe: tuple[str, ...]
    """Columns that this condition may use besides those that are published."""
    levels: dict[str, tuple[str, ...]]
    variable_labels: dict[str, str] = Field(default_factory=dict)
    """The labels of columns that have one."""
    population_total: float | None
    calibration: CalibrationSpec | None
    """The public totals to which released weights are calibrated."""
    records: int
    """The number of records; where whole records are protected, with noise."""
    domain: str | None = None
    """The condition that all tables are restricted to."""
    variables: dict[str, VariableFacts] = Field(default_factory=dict)
    """The declared answers that the release has, the outcome perhaps among them."""
    domains: tuple[DomainFacts, ...] = ()
    """What each domain means in terms of labels."""

    @property
    def known_domains(self) -> dict[str, PublicDomain]:
        """The domains by the name of their column; parts that do not fit the levels are a ValueError."""
        return {
            domain_column(one.condition): PublicDomain.of_parts(one.columns, one.parts, self.levels)
            for one in self.domains
        }

    @property
    def released_fpc(self) -> str | None:
        """The column of the finite population correction, which is public."""
        return self.fpc


def _released_mechanism(name: str) -> str:
    if name not in mechanism_names(released=True):
        raise ValueError("is not a mechanism that is released")
    return name


def _mechanism_schema() -> dict[str, Any]:
    return {"type": "string", "enum": list(mechanism_names(released=True))}


class PrivacyFacts(_Part):
    """The spec's privacy part."""

    mechanism: Annotated[str, AfterValidator(_released_mechanism), WithJsonSchema(_mechanism_schema())]
    epsilon: float
    datasets: int
    guarantee: Literal["asymptotic", "global"]
    protect: Protected
    unit: Unit = "respondent"
    """Whose answers are protected together: one respondent's, or those of a whole cluster."""
    scales: Scales | None
    constants: StandInSpec | None
    """The public constants that give the scales, where `scales` says so."""
    scheme: Scheme | None
    draws: int | None
    bounds: BoundsSpec | None
    correction: bool | None


class Rounding(_Part):
    """Significant digits of the published numbers."""

    microdata: int
    tables: int


class LedgerEntry(_Part):
    """The entry that paid for the release."""

    ledger: str
    entry: int
    hash: Hash


class Manifest(_Part):
    """What a release says of itself: every field of manifest.json."""

    format: Literal[3]
    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    warning: str | None
    about: AboutSpec
    guarantee: Guarantee
    statement: tuple[str, str]
    """The guarantee in two sentences."""
    privacy: PrivacyFacts
    survey: SurveyFacts
    model: ModelSpec | None
    estimation: EstimationSpec
    tables: tuple[TableSpec, ...]
    rounding: Rounding
    notes: tuple[str, ...]
    versions: dict[str, str]
    files: dict[str, Hash]
    """SHA-256 of every other public file."""
    ledger: LedgerEntry | None
    """None where the release had a seed: nothing was charged."""

    def to_json(self) -> str:
        """The manifest as it is published."""
        return self.model_dump_json(indent=2) + "\n"

    def spec(self) -> Spec:
        """As much of the spec as making the tables again needs."""
        roles = ["outcome", "weight", "weight_public", "transform", "strata", "cluster", "fpc", "public"]
        own = {role: getattr(self.survey, role) for role in (*roles, "population_total", "calibration", "domain")}
        survey = {"data": Path("microdata"), "fpc_public": self.survey.fpc is not None} | own
        survey["variables"] = {name: facts.settings() for name, facts in self.survey.variables.items()}
        missing = (name for name, facts in self.survey.variables.items() if facts.may_miss)
        survey["columns"] = {name: {"missing": ["NA"]} for name in missing}
        return Spec.model_validate({"survey": survey, "estimation": self.estimation, "tables": self.tables})
