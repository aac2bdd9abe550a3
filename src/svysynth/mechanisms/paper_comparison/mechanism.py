"""Paper Laplace, `laplace-paper` to the user: the paper's Laplace noise, a comparison for the frontier (§2.4).

It has no guarantee: its noise is scaled by the confidential data themselves, so none of its tables can be released.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import ModelSpec, Spec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import Synthetic
from svysynth.mechanisms.base import (
    TABLES_AND_REPORT,
    Further,
    Grid,
    Made,
    Mechanism,
    Pay,
    Progress,
    Remade,
    Roles,
    Try,
)
from svysynth.mechanisms.findings import Finding, no_public_weights, refuse
from svysynth.mechanisms.paper_comparison.tables import laplace_tables
from svysynth.mechanisms.suitability import Examined
from svysynth.privacy.guarantee import Guarantee, no_guarantee
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.survey.survey import Survey

COMPARISON = Finding(
    "privacy.mechanism",
    "'laplace-paper' is for comparison only, has no guarantee and cannot be released",
    "its noise is scaled by the confidential data themselves",
    "use 'fbs', 'fbp' or 'laplace'",
    stops=True,
)


class PaperLaplace(Mechanism):
    """The mechanism that makes tables with the paper's Laplace noise, for comparison only."""

    packages = ()
    stated = ()
    modelled = False

    def title(self, name: str) -> str:
        """A description for completeness: no report shows it."""
        return "The paper’s Laplace noise: a comparison without a guarantee"

    def find_public(self, spec: Spec) -> list[Finding]:
        """The finding that it cannot be released, whatever else the spec says."""
        return [COMPARISON, *no_public_weights(spec)]

    def undivided(self, spec: Spec) -> str | None:
        """The mechanism itself needs all records at once, for its sensitivities."""
        return "privacy.mechanism"

    def reads(self, spec: Spec) -> SurveySpec:
        """The spec unchanged."""
        return spec.survey

    def check(self, survey: Survey, spec: Spec) -> None:
        """Refuse always."""
        refuse([COMPARISON])

    def examine(self, survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
        """The finding that it cannot be released, and nothing else."""
        return Examined((COMPARISON,))

    def guarantee(self, survey: SurveySpec | SurveyFacts, privacy: PrivacySpec | PrivacyFacts) -> Guarantee:
        """The statement that nothing is guaranteed."""
        roles = Roles.of(survey)
        return no_guarantee(privacy.mechanism, confidential=roles.confidential, public=roles.public)

    def run(self, survey: Survey, spec: Spec, pay: Pay, streams: Streams, progress: Progress) -> Made:
        """Raise an error: a release is never made."""
        raise NotImplementedError("the paper's Laplace noise cannot be released")

    def synthetic(self, surveys: tuple[Survey, ...], name: str, model: ModelSpec) -> Synthetic:
        """This mechanism makes no synthetic surveys."""
        return Synthetic(())

    def public_files(self, manifest: Manifest) -> tuple[str, ...]:
        """The files that every release has."""
        return TABLES_AND_REPORT

    def remake(self, public: Path, manifest: Manifest) -> Remade | None:
        """None: there is no release to make again."""
        return None

    def further(self, public: Path, manifest: Manifest) -> Further | None:
        """None: there is no release."""
        return None

    def tries(
        self, survey: Survey, spec: Spec, name: str, grid: Grid, streams: Streams, progress: Progress
    ) -> Iterator[Try]:
        """Tables at every ε and repeat, each with independent noise."""
        for epsilon in grid.epsilons:
            progress(f"{name}: ε = {epsilon:g}")
            for repeat in range(grid.repeats):
                own = streams.split("laplace", repeat)
                found = laplace_tables(survey, spec.requested_tables, epsilon, own, estimation=spec.estimation)
                yield epsilon, 0, repeat, found.tables
