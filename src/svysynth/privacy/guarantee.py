"""Guarantee: what a release promises, in words and numbers (docs/method.md says where each number comes from).

Two neighbouring data sets differ in one respondent's outcome and weight: blanked out, so that the respondent says
nothing, or changed to any others. The public columns, the strata and the number of records in each cell stay as they
are. Where whole records are protected, two neighbouring data sets differ in one record, which is added or removed, or
changed in any of its columns. Where whole clusters are protected, the answers of all respondents of one cluster differ.
ε bounds the absolute log ratio of the probabilities of any result under the two.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from svysynth.core.notebook import Html, card
from svysynth.core.registry import Accounting
from svysynth.core.spec.privacy import Protected, Unit

Kind = Literal["asymptotic", "global", "none"]
NOT_DIFFERENTIAL_PRIVACY = "This is not differential privacy"
"""How every statement of the asymptotic guarantee begins."""


class Guarantee(BaseModel):
    """What is promised to each respondent about everything in a release together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    mechanism: str
    epsilon_blanked: float | None
    """ε for one respondent's outcome and weight being blanked out; None where nothing is promised.

    Where whole records are protected: for one respondent taking part or not.
    """
    epsilon_changed: float | None
    """ε for the two being changed; where whole records are protected, for a whole record being changed."""
    protects: Protected = "answers"
    """The confidential columns of a respondent, or the whole record, including whether there is one."""
    unit: Unit = "respondent"
    """Whose answers may differ: those of one respondent, or those of all respondents of one cluster."""
    largest_bound: float | None
    """Δ = ε/(2m), the target that each record's weighted bound was held to, or the sum of these bounds in each cluster
    if clusters are protected; None where there are no bounds."""
    datasets: int
    """How many draws, and so synthetic files, the ε covers; 0 for tables alone."""
    confidential: tuple[str, ...]
    public: tuple[str, ...]
    """Columns that are published as they are, with the number of records in each of their cells."""
    cluster: str | None = None
    """The column of clusters: which records share one is published. None where there are no clusters."""
    universe: str | None = None
    """The condition that says which records take part; who meets it is taken as public. None where all do."""
    transform: str
    """The scale of the outcome on which densities, and so ε, are taken."""
    units: str
    """How outcome and weight are scaled before densities are taken."""
    sampler: str | None = None
    """What drew from the posterior, which is always an approximation. None where nothing is sampled from one."""
    draws: int | None = None
    """The number of draws over which the bounds of records were taken."""

    def _repr_html_(self) -> Html:
        """The promise in words."""
        return card("What is promised", sentences=self.sentences())

    @property
    def accounting(self) -> Accounting:
        """The kind of ε that a release with this promise is charged in."""
        return "differential privacy" if self.kind == "global" else "asymptotic"

    @property
    def charged(self) -> float | None:
        """The ε that is charged: for an answer changed, or the paper's figure where the promise is asymptotic."""
        return self.epsilon_changed if self.kind == "global" else self.epsilon_blanked

    @property
    def covers(self) -> str:
        """The files and tables that the promise is about."""
        if not self.datasets:
            return "all tables"
        files = "synthetic files" if self.datasets > 1 else "synthetic file"
        if self.kind == "global":  # files and tables both follow from what was measured
            return f"the {self.datasets} {files}, all tables and whatever is made from them"
        return f"the {self.datasets} {files} and all tables made from {'them' if self.datasets > 1 else 'it'}"

    def sentences(self) -> tuple[str, str]:
        """The promise for someone who uses the data."""
        secret, shown = _and(self.confidential), ", ".join(self.public)
        given = f"Published as they are: {shown}, and the number of records in each of their cells."
        if self.cluster:
            given += f" Which records share a {self.cluster} is published too."
        if self.universe:
            given += f" Who belongs to the universe ({' '.join(self.universe.split())}) is taken as public."
        if self.kind == "none":
            return (
                "Nothing is promised: the noise was scaled by the confidential data themselves.",
                "This is a comparison for internal use and must not be published.",
            )
        what = self.covers
        are, they = ("are", "they are") if len(self.confidential) > 1 else ("is", "it is")
        one, whose = "respondent", "a respondent's"
        if self.unit == "cluster":
            one, whose, are, they = "cluster of respondents", "a whole cluster's", "are", "they are"
        small = (
            f"ε = {self.epsilon_blanked:g} if {whose} {secret} {are} blanked out, and "
            f"{self.epsilon_changed:g} if {they} changed"
        )
        if self.protects == "record":
            return (
                f"Whatever any one respondent had answered, and whether or not they took part, the probability of "
                f"exactly these results ({what}) would be the same up to a factor of exp(ε): "
                f"ε = {self.epsilon_blanked:g} for taking part or not, and {self.epsilon_changed:g} if a respondent's "
                "whole record is changed.",
                f"This holds for every data set, whatever else anyone knows. Protected are {secret}, who takes part, "
                "and how many records each cell has; these numbers are published with noise. The levels of columns "
                "are declared, not taken from the data.",
            )
        if self.kind == "global":
            return (
                f"Whatever any one {one} had answered, the probability of exactly these results ({what}) would "
                f"be the same up to a factor of exp(ε): {small}.",
                f"This holds for every data set, whatever else anyone knows. {given}",
            )
        return (
            f"{NOT_DIFFERENTIAL_PRIVACY}: it is the paper's asymptotic guarantee. It limits how much {what} depend "
            f"on the {secret} of any one {one}: {small}, where exp(ε) bounds how much more or less probable any "
            "result could become.",
            "The bound was computed from the data at hand. It holds asymptotically, more surely the larger the survey; "
            f"it is not a promise for every possible data set. {given}",
        )


def _and(names: tuple[str, ...]) -> str:
    """Names as in a sentence."""
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def asymptotic(
    mechanism: str,
    epsilon: float,
    datasets: int,
    *,
    confidential: tuple[str, ...],
    public: tuple[str, ...],
    transform: str,
    draws: int,
    universe: str | None = None,
    cluster: str | None = None,
    unit: Unit = "respondent",
) -> Guarantee:
    """The paper's guarantee: ε = 2·Δ_α·m for a respondent blanked out, and twice that for one changed."""
    return Guarantee(
        kind="asymptotic",
        mechanism=mechanism,
        epsilon_blanked=epsilon,
        epsilon_changed=2 * epsilon,
        largest_bound=epsilon / (2 * datasets),
        datasets=datasets,
        confidential=confidential,
        public=public,
        universe=universe,
        cluster=cluster,
        unit=unit,
        transform=transform,
        units="weights scaled to mean 1",
        sampler="Hamiltonian Monte Carlo (approximate)",
        draws=draws,
    )


def additive(
    epsilon: float,
    *,
    confidential: tuple[str, ...],
    public: tuple[str, ...],
    universe: str | None = None,
    cluster: str | None = None,
    unit: Unit = "respondent",
) -> Guarantee:
    """The guarantee of additive noise: ε for a respondent changed in any way, and so for one blanked out too."""
    return Guarantee(
        kind="global",
        mechanism="laplace",
        epsilon_blanked=epsilon,
        epsilon_changed=epsilon,
        largest_bound=None,
        datasets=0,
        confidential=confidential,
        public=public,
        universe=universe,
        cluster=cluster,
        unit=unit,
        transform="identity",
        units="as in the file, clamped to public bounds",
    )


def measured(
    mechanism: str,
    epsilon: float,
    datasets: int,
    *,
    confidential: tuple[str, ...],
    public: tuple[str, ...],
    transform: str,
    universe: str | None = None,
    cluster: str | None = None,
    public_scales: bool = False,
    unit: Unit = "respondent",
) -> Guarantee:
    """The guarantee of noisy sums: ε for a respondent changed, and half of it for one blanked out.

    A record that is blanked out moves every sum half as far. Synthetic files cost nothing more.
    """
    return Guarantee(
        kind="global",
        mechanism=mechanism,
        epsilon_blanked=epsilon / 2,
        epsilon_changed=epsilon,
        largest_bound=None,
        datasets=datasets,
        confidential=confidential,
        public=public,
        universe=universe,
        cluster=cluster,
        unit=unit,
        transform=transform,
        units=f"in {'public scales' if public_scales else 'scales from noisy histograms'}, clamped to public bounds",
    )


def measured_records(
    mechanism: str,
    epsilon: float,
    datasets: int,
    *,
    columns: tuple[str, ...],
    transform: str,
    public_scales: bool = False,
) -> Guarantee:
    """The guarantee of noisy sums and sizes: ε for a whole record changed, half of it for one added or removed."""
    promise = measured(
        mechanism,
        epsilon,
        datasets,
        confidential=columns,
        public=(),
        transform=transform,
        public_scales=public_scales,
    )
    return promise.model_copy(update={"protects": "record"})


def no_guarantee(mechanism: str, *, confidential: tuple[str, ...], public: tuple[str, ...]) -> Guarantee:
    """No promise: the Laplace noise of the paper's comparison, whose sensitivities come from the confidential data."""
    return Guarantee(
        kind="none",
        mechanism=mechanism,
        epsilon_blanked=None,
        epsilon_changed=None,
        largest_bound=None,
        datasets=0,
        confidential=confidential,
        public=public,
        transform="identity",
        units="as in the file",
    )
