"""The paper's Laplace noise, `laplace-paper` to the user: a comparison for the frontier, without a guarantee (§2.4).

Its noise is scaled by the confidential data themselves, so nothing of it can be released.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from svysynth.core.spec import ModelSpec, PrivacySpec, Spec, SurveySpec
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
from svysynth.mechanisms.paper_laplace.tables import laplace_tables
from svysynth.mechanisms.suitability import Examined
from svysynth.privacy.guarantee import Guarantee, no_guarantee
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.survey.survey import Survey

COMPARISON = Finding(
    "privacy.mechanism",
    "'laplace-paper' is a comparison without a guarantee and cannot be released",
    "its noise is scaled by the confidential data themselves",
    "use 'fbs', 'fbp' or 'laplace'",
    stops=True,
)


class PaperLaplace(Mechanism):
    """Tables for comparison."""

    packages = ()
    stated = ()
    modelled = False

    def title(self, name: str) -> str:
        """For completeness: no report shows it."""
        return "The paper’s Laplace noise: a comparison without a guarantee"

    def find_public(self, spec: Spec) -> list[Finding]:
        """It cannot be released, whatever else the spec says."""
        return [COMPARISON, *no_public_weights(spec)]

    def undivided(self, spec: Spec) -> str | None:
        """Its sensitivities need all records."""
        return "privacy.mechanism"

    def reads(self, spec: Spec) -> SurveySpec:
        """As it is."""
        return spec.survey

    def check(self, survey: Survey, spec: Spec) -> None:
        """Always refused."""
        refuse([COMPARISON])

    def examine(self, survey: Survey, spec: Spec, direct: pl.DataFrame) -> Examined:
        """Nothing but that."""
        return Examined((COMPARISON,))

    def guarantee(self, survey: SurveySpec | SurveyFacts, privacy: PrivacySpec | PrivacyFacts) -> Guarantee:
        """None."""
        roles = Roles.of(survey)
        return no_guarantee(privacy.mechanism, confidential=roles.confidential, public=roles.public)

    def run(self, survey: Survey, spec: Spec, pay: Pay, streams: Streams, progress: Progress) -> Made:
        """Never."""
        raise NotImplementedError("the paper's Laplace noise cannot be released")

    def synthetic(self, surveys: tuple[Survey, ...], name: str, model: ModelSpec) -> Synthetic:
        """There are none."""
        return Synthetic(())

    def public_files(self, manifest: Manifest) -> tuple[str, ...]:
        """Those that any release has."""
        return TABLES_AND_REPORT

    def remake(self, public: Path, manifest: Manifest) -> Remade | None:
        """There is nothing to make again."""
        return None

    def further(self, public: Path, manifest: Manifest) -> Further | None:
        """There is no release."""
        return None

    def tries(
        self, survey: Survey, spec: Spec, name: str, grid: Grid, streams: Streams, progress: Progress
    ) -> Iterator[Try]:
        """With noise of its own for each repeat."""
        for epsilon in grid.epsilons:
            progress(f"{name}: ε = {epsilon:g}")
            for repeat in range(grid.repeats):
                own = streams.split("laplace", repeat)
                found = laplace_tables(survey, spec.requested_tables, epsilon, own, estimation=spec.estimation)
                yield epsilon, 0, repeat, found.tables
