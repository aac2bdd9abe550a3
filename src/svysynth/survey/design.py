"""The sampling design: which columns describe it, and its strata and primary sampling units as integers.

With clusters the primary sampling unit (PSU) is the cluster within its stratum (R's `nest = TRUE`); without
clusters every record is a PSU. A design may have further stages: units drawn within each PSU, and so on. With finite
population corrections the variance has a part for each stage; without them the first stage is all that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Booleans, Floats, Integers, count_keys, group_ids
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import Lonely
from svysynth.core.spec.stages import StageSpec

EXHAUSTED = 1e-7
"""A stratum with a smaller unsampled fraction counts as fully observed, as in R `survey`."""


@dataclass(frozen=True)
class Design:
    """The columns that describe how the sample was drawn."""

    weight: str
    strata: str | None = None
    cluster: str | None = None
    fpc: str | None = None
    later: tuple[StageSpec, ...] = ()
    """The stages of sampling after the first."""
    fpc_public: bool = False
    """Whether the finite population correction is declared public."""

    @property
    def released_fpc(self) -> str | None:
        """The column of the finite population correction that a release publishes, if there is one."""
        return self.fpc if self.fpc_public else None

    @property
    def first_stage(self) -> Design:
        """The first stage alone, without corrections, if there are several stages."""
        return replace(self, later=(), fpc=None, fpc_public=False) if self.later else self


@outlined
@dataclass(frozen=True, eq=False)
class Stage:
    """One stage of sampling, per record: its stratum, its cluster and its finite population correction.

    The same per group of records, if there are counts.
    """

    stratum: Integers
    cluster: Integers | None
    """None if the units of this stage are the records."""
    fpc: Floats | None
    count: Integers | None = None
    """How many records each group has."""


@outlined
@dataclass(frozen=True, eq=False)
class DesignIndex:
    """A design as integers: the stratum and the PSU of every record.

    A stage of sampling after the first is an index of its own. Its strata are those of this stage within the units of
    the stage before, and its units take the place of PSUs.
    """

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
    later: tuple[DesignIndex, ...] = ()
    """The later stages that variances depend on: none without finite population corrections."""
    parent: Integers | None = None
    """Per stratum of a later stage: the unit of the stage before that it lies in; None at the first stage."""
    share: Floats | float = 1.0
    """Per stratum: the product of the sampled fractions of all units that it lies in."""
    of_block: Integers | None = None
    """Per block of the last stage: its block at this stage; None at the last stage itself."""

    @property
    def block(self) -> Integers:
        """Per record: its unit at the last stage, or its stratum there if the units are records."""
        last = self.later[-1] if self.later else self
        return last.stratum if last.psu is None else last.psu

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

    @property
    def parents(self) -> Integers:
        """Per stratum: the unit of the stage before that it lies in; at the first stage they all lie in one."""
        return np.zeros(self.strata, np.int64) if self.parent is None else self.parent

    def blocks_here(self, block: Integers) -> Integers:
        """The blocks of this stage that contain some blocks of the last stage."""
        return block if self.of_block is None else self.of_block[block]

    def refuse_lonely(self, policy: Lonely) -> None:
        """Stop when the policy is to fail and a stratum has one PSU, or if there is no other stratum to average."""
        for number, stage in enumerate((self, *self.later), start=1):
            count = int(stage.lonely.sum())
            unit = "record" if stage.psu is None else "cluster"
            where = f" at stage {number}" if self.later else ""
            if policy == "fail" and count:
                raise SurveyError(
                    "design",
                    "strata",
                    f"{count:,} of {stage.strata:,} strata {'has' if count == 1 else 'have'} only one {unit}{where}",
                    "merge them with a neighbour, or set estimation.lonely to 'certainty', 'adjust' or 'average'",
                )
            if policy == "average" and stage.alone().any():
                problem = f"has no other stratum to average for a stratum with only one {unit}{where}"
                raise SurveyError("design", "estimation.lonely", problem, "set it to 'certainty' or 'adjust'")

    def alone(self) -> Booleans:
        """Per unit of the stage before: whether it has strata here, and all of them have one unit only."""
        parent = self.parents
        return np.asarray((np.bincount(parent) > 0) & (np.bincount(parent, ~self.lonely) == 0))


def index_design(first: Stage, later: Sequence[Stage] = ()) -> DesignIndex:
    """Number the strata and the units of every stage of a design whose strata and clusters are already integers."""
    fpcs = [stage.fpc for stage in (first, *later) if stage.fpc is not None]
    fractions = all(np.all(fpc <= 1) for fpc in fpcs)
    indices = [_index_stage(first, fractions)]
    for stage in later if fpcs else ():
        before = indices[-1]
        assert before.psu is not None
        strata = int(stage.stratum.max()) + 1
        keys, stratum = group_ids(
            before.psu.astype(np.int64) * strata + stage.stratum, len(before.psu_stratum) * strata
        )
        parent = keys // strata
        above = before.psu_stratum[parent]
        share = np.broadcast_to(before.share, before.strata)[above] * (1 - before.unsampled[above])
        found = _index_stage(replace(stage, stratum=stratum), fractions, f" of a unit of stage {len(indices)}")
        indices.append(replace(found, parent=parent, share=share))
    return _joined(indices)


def _joined(indices: Sequence[DesignIndex]) -> DesignIndex:
    """The index of the first stage with those of the others in it."""
    *before, last = indices
    block = last.block
    placed = []
    for index in before:
        assert index.psu is not None
        of_block = np.empty(int(block.max()) + 1, np.int64)
        of_block[block] = index.psu
        placed.append(replace(index, of_block=of_block))
    first, *later = [*placed, last]
    return replace(first, later=tuple(later))


def _index_stage(stage: Stage, fractions: bool, within: str = "") -> DesignIndex:
    stratum, cluster = stage.stratum, stage.cluster
    strata = int(stratum.max()) + 1
    if cluster is None:
        psu, psu_stratum = None, stratum
    else:
        clusters = int(cluster.max()) + 1
        keys, psu = group_ids(stratum.astype(np.int64) * clusters + cluster, strata * clusters)
        psu_stratum = keys // clusters
    if cluster is None and stage.count is not None:
        psus = sums_of_groups(stratum, strata, stage.count)
    else:
        psus = count_keys(psu_stratum, strata)
    unsampled = np.ones(strata)
    if stage.fpc is not None:
        unsampled = _unsampled_fraction(stratum, strata, stage.fpc, psus, fractions, within)
    return DesignIndex(stratum, psu, psu_stratum, psus, unsampled)


def _unsampled_fraction(
    stratum: Integers, strata: int, fpc: Floats, psus: Integers, fractions: bool, within: str
) -> Floats:
    """1 − f per stratum; `fpc` holds fractions if it does at every stage, else numbers of units in the population."""
    value = np.empty(strata)
    value[stratum] = fpc
    if np.any(value[stratum] != fpc):
        problem = f"the column varies within a stratum{within}"
        raise SurveyError("design", "survey.fpc", problem, "give each stratum one value")
    if np.any(fpc <= 0):
        raise SurveyError("design", "survey.fpc", "the column has values that are not positive", "correct them")
    sizes = _sizes(value, psus, fractions)
    too_small = int(np.sum(sizes < psus * (1 - 1e-12)))
    if too_small:
        raise SurveyError(
            "design",
            "survey.fpc",
            f"{too_small:,} strata{within} have a population smaller than their sample",
            "give population sizes, counted in clusters where the design has clusters, or sampling fractions",
        )
    return np.clip(1 - psus / sizes, 0, 1)


def sums_of_groups(group: Integers, groups: int, count: Integers) -> Integers:
    """How many records each group has, from the counts of the group's parts."""
    return np.bincount(group, count, minlength=groups).astype(np.int64)


def unsampled_fraction(fpc: Floats, psus: Integers) -> Floats:
    """1 − f per stratum, from the correction and the number of units of each, with nothing for a fully observed one."""
    unsampled = np.clip(1 - psus / _sizes(fpc, psus, bool(np.all(fpc <= 1))), 0, 1)
    return np.where(unsampled < EXHAUSTED, 0.0, unsampled)


def _sizes(value: Floats, psus: Integers, fractions: bool) -> Floats:
    """The number of units in the population of each stratum."""
    return np.asarray(psus / value if fractions else value)
