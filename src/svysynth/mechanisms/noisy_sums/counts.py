"""Counts from public weights: exact, with the variance of direct tables, and without draws or noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from svysynth.core.grouping import Booleans, Floats, Integers, group_sums
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import Lonely
from svysynth.core.spec.statistics import Statistic
from svysynth.estimation.linearization import taylor_variance
from svysynth.estimation.moments import Moments
from svysynth.estimation.statistics import estimate, sum_domains
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.survey.design import DesignIndex, Stage, index_design


@outlined
@dataclass(frozen=True, eq=False)
class ExactCounts:
    """Exact counts and proportions, from the moments of the weights in each group."""

    moments: Moments
    index: DesignIndex

    @classmethod
    def of(cls, facts: PublicFacts) -> ExactCounts | None:
        """The exact counts; None if weights are confidential."""
        weights = facts.weights
        if weights is None:
            return None
        groups, nothing = len(facts.count), np.zeros(len(facts.count))
        mean = group_sums(weights.group, groups, weights.value * weights.count) / facts.count
        off = weights.value - mean[weights.group]
        scatter = group_sums(weights.group, groups, weights.count * off**2)
        index = DesignIndex(facts.stratum, None, facts.stratum, facts.of_stratum, facts.unsampled)
        if facts.cluster is not None:
            fpc = None if facts.fpc is None else facts.fpc[facts.stratum]
            index = index_design(Stage(facts.stratum, facts.cluster, fpc))
        places = index.block, np.arange(groups), facts.count
        return cls(Moments(*places, nothing, mean, nothing, scatter, nothing, nothing), index)

    def __call__(
        self, statistic: Statistic, domain: Integers, lonely: Lonely, inside: Booleans
    ) -> tuple[Floats, Floats]:
        """Estimate and variance for each domain; `domain` gives the domain of each group.

        Proportions are of the groups that are inside the table's base.
        """
        sums = sum_domains(self.moments, domain, int(domain.max()) + 1, None if inside.all() else inside)
        variance = taylor_variance(statistic, self.moments, self.index, domain, sums, lonely)
        return estimate(statistic, sums.weight, sums.outcome, sums.base), variance
