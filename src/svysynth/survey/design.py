"""The sampling design: which columns describe it, and its strata and primary sampling units as integers.

With clusters the primary sampling unit (PSU) is the cluster within its stratum (R's `nest = TRUE`); without
clusters every record is a PSU. The finite population correction counts PSUs, at the first stage only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Floats, Integers, count_keys, group_ids
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import Lonely

EXHAUSTED = 1e-7
"""A stratum with a smaller unsampled fraction counts as fully observed, as in R `survey`."""


@dataclass(frozen=True)
class Design:
    """The columns that describe how the sample was drawn."""

    weight: str
    strata: str | None = None
    cluster: str | None = None
    fpc: str | None = None


@outlined
@dataclass(frozen=True, eq=False)
class DesignIndex:
    """A design as integers: the stratum and the PSU of every record."""

    stratum: Integers
    """Per record: its stratum, 0 … H−1."""
    psu: Integers | None
    """Per record: its PSU, 0 … P−1; None when every record is a PSU."""
    psu_stratum: Integers
    """Per PSU: its stratum (the same array as `stratum` without clusters)."""
    psus: Integers
    """Per stratum: how many PSUs were drawn."""
    unsampled: Floats
    """Per stratum: 1 − (PSUs drawn)/(PSUs in the population); 1 without a finite population correction."""

    @property
    def strata(self) -> int:
        """The number of strata."""
        return len(self.psus)

    @property
    def degrees_of_freedom(self) -> int:
        """The number of PSUs minus the number of strata, for the whole design, whatever the domain."""
        return int(self.psus.sum()) - self.strata

    @property
    def lonely(self) -> Booleans:
        """Strata with one PSU that are not fully observed: their variance cannot be estimated from within."""
        return np.asarray((self.psus == 1) & (self.unsampled >= EXHAUSTED))

    def refuse_lonely(self, policy: Lonely) -> None:
        """Stop when the policy is to fail and a stratum has one PSU."""
        count = int(self.lonely.sum())
        if policy == "fail" and count:
            unit = "record" if self.psu is None else "cluster"
            raise SurveyError(
                "design",
                "strata",
                f"{count:,} of {self.strata:,} strata {'has' if count == 1 else 'have'} only one {unit}",
                "merge them with a neighbour, or set estimation.lonely to 'certainty' or 'adjust'",
            )


def index_design(stratum: Integers, cluster: Integers | None, fpc: Floats | None) -> DesignIndex:
    """Number the PSUs of a design whose strata and clusters are already integers."""
    strata = int(stratum.max()) + 1
    if cluster is None:
        psu, psu_stratum = None, stratum
    else:
        clusters = int(cluster.max()) + 1
        keys, psu = group_ids(stratum.astype(np.int64) * clusters + cluster, strata * clusters)
        psu_stratum = keys // clusters
    psus = count_keys(psu_stratum, strata)
    unsampled = np.ones(strata) if fpc is None else _unsampled_fraction(stratum, strata, fpc, psus)
    return DesignIndex(stratum, psu, psu_stratum, psus, unsampled)


def _unsampled_fraction(stratum: Integers, strata: int, fpc: Floats, psus: Integers) -> Floats:
    """1 − f per stratum; `fpc` holds fractions when all are at most 1, else numbers of PSUs in the population."""
    value = np.empty(strata)
    value[stratum] = fpc
    if np.any(value[stratum] != fpc):
        raise SurveyError("design", "survey.fpc", "the column varies within a stratum", "give each stratum one value")
    if np.any(fpc <= 0):
        raise SurveyError("design", "survey.fpc", "the column has values that are not positive", "correct them")
    sizes = psus / value if np.all(value <= 1) else value
    too_small = int(np.sum(sizes < psus * (1 - 1e-12)))
    if too_small:
        raise SurveyError(
            "design",
            "survey.fpc",
            f"{too_small:,} strata have a population smaller than their sample",
            "give population sizes, counted in clusters where the design has clusters, or sampling fractions",
        )
    return np.clip(1 - psus / sizes, 0, 1)
