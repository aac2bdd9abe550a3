"""Public facts: the cells of the public columns, the strata, the clusters, and the number of records in each.

If whole records are protected, the cells are all combinations of declared levels, and their sizes are noisy
(`sizes.py`). Weights that are declared public are facts too (`public_weights.py`). The steps after a measurement use
these facts and the measurement, and nothing else from the survey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from svysynth.core.column_storage import Column
from svysynth.core.grouping import Floats, Integers, group_ids
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.mechanisms.noisy_sums.measuring.public_weights import PublicWeights, weights_by, weights_of
from svysynth.survey.clusters import number_clusters
from svysynth.survey.design import unsampled_fraction
from svysynth.survey.domains import PublicDomain
from svysynth.survey.survey import Survey


@outlined
@dataclass(frozen=True, eq=False)
class PublicFacts:
    """The cells, and the groups of records that share a cell, a stratum and a cluster."""

    labels: Mapping[str, tuple[str, ...]]
    """The levels of each public column, in order."""
    codes: Integers
    """The position of the level: cell × public column."""
    cell: Integers
    """The cell of each group."""
    stratum: Integers
    """The stratum of each group."""
    count: Integers
    """The number of records in each group."""
    weights: PublicWeights | None = None
    """None if weights are confidential."""
    domain: str | None = None
    """The condition that all tables are restricted to."""
    domains: Mapping[str, PublicDomain] = field(default_factory=dict)
    """The domains that tables may be restricted to, by the name of their column."""
    calibration: CalibrationSpec | None = None
    """The totals that weights are calibrated to; None if there are none."""
    cluster: Integers | None = None
    """The cluster of each group; None if the design has no clusters."""
    fpc: Floats | None = None
    """The finite population correction of each stratum, as its column has it; None without one."""

    def __len__(self) -> int:
        return int(self.count.sum())

    def levels(self, column: str) -> tuple[str, ...]:
        """The labels of a public column, in order."""
        return self.labels[column]

    @property
    def size(self) -> Integers:
        """The number of records in each cell."""
        return np.bincount(self.cell, self.count, len(self.codes)).astype(np.int64)

    @property
    def strata(self) -> int:
        """The number of strata."""
        return int(self.stratum.max()) + 1

    @property
    def of_stratum(self) -> Integers:
        """The number of records in each stratum."""
        return np.bincount(self.stratum, self.count, self.strata).astype(np.int64)

    @property
    def units(self) -> Integers:
        """The number of units of the first stage in each stratum: clusters or, without these, records."""
        if self.cluster is None:
            return self.of_stratum
        return np.bincount(self.stratum_of_cluster, minlength=self.strata).astype(np.int64)

    @property
    def stratum_of_cluster(self) -> Integers:
        """The stratum of each cluster."""
        if self.cluster is None:
            raise ValueError("the design has no clusters")
        found = np.zeros(int(self.cluster.max()) + 1, np.int64)
        found[self.cluster] = self.stratum
        return found

    @property
    def unsampled(self) -> Floats:
        """1 − f of each stratum, where f is that of its units: 1 without a finite population correction."""
        return np.ones(self.strata) if self.fpc is None else unsampled_fraction(self.fpc, self.units)

    def without_clusters(self) -> tuple[PublicFacts, Integers]:
        """The facts with groups of records that share a cell and a stratum, and the new group of each group."""
        key, place = np.unique(self.cell * self.strata + self.stratum, return_inverse=True)
        count = np.bincount(place, self.count).astype(np.int64)
        weights = None if self.weights is None else self.weights.regrouped(place)
        cell, stratum = np.divmod(key, self.strata)
        sampled = None if self.fpc is None else 1 - self.unsampled  # as fractions: clusters are gone
        alone = replace(self, cell=cell, stratum=stratum, count=count, weights=weights, cluster=None, fpc=sampled)
        return alone, place

    def by_group(self) -> PublicFacts:
        """The facts with each group as a cell of its own."""
        return replace(self, codes=self.codes[self.cell], cell=np.arange(len(self.cell)))

    def rows(self, columns: Sequence[str]) -> Integers:
        """For each cell, its row among those combinations of some columns that have records."""
        chosen = [list(self.labels).index(column) for column in columns]
        if not chosen:
            return np.zeros(len(self.codes), np.int64)
        return np.unique(self.codes[:, chosen], axis=0, return_inverse=True)[1].reshape(-1)

    def indicators(self) -> Floats:
        """Indicators: cell × coefficient, with one coefficient for all cells and one for each level of each column."""
        parts = [np.ones((len(self.codes), 1))]
        for number, labels in enumerate(self.labels.values()):
            parts.append(np.eye(len(labels))[self.codes[:, number]])
        return np.concatenate(parts, axis=1)


def cell_of_record(survey: Survey, facts: PublicFacts) -> Column:
    """For every record the position of its cell: among all declared cells, or among those that have records."""
    every = math.prod(len(levels) for levels in facts.labels.values())
    return survey.cell_index(survey.public) if len(facts.codes) == every else survey.present_cells(survey.public)[1]


def facts_of(survey: Survey) -> PublicFacts:
    """The public part of a survey."""
    labels = {column: survey.levels(column) for column in survey.public}
    cells, _ = survey.present_cells(survey.public)
    codes = np.array(np.unravel_index(cells, [len(levels) for levels in labels.values()])).T
    groups = replace(survey, weight_public=False).groups  # groups by cell, stratum and cluster, not by weight
    stratum: Integers = np.zeros(len(groups.count), np.int64)
    if survey.design.strata:
        stratum = _numbered(groups.frame[survey.design.strata])
    fpc = None
    if survey.design.released_fpc is not None:
        fpc = np.empty(int(stratum.max()) + 1)
        fpc[stratum] = groups.frame[survey.design.released_fpc].to_numpy()
    restricted = survey.domain, survey.domains
    facts = PublicFacts(labels, codes, groups.cell, stratum, groups.count, None, *restricted, survey.calibration)
    facts = replace(facts, fpc=fpc)
    if survey.design.cluster:
        own = _numbered(groups.frame[survey.design.cluster])
        clusters = int(own.max()) + 1
        facts = replace(facts, cluster=group_ids(stratum * clusters + own, facts.strata * clusters)[1].astype(np.int64))
    if not survey.weight_public:
        return facts
    if facts.cluster is not None:
        return _with_weights_of_clusters(survey, facts)
    return replace(facts, weights=weights_of(survey, cell_of_record(survey, facts), facts))


def _with_weights_of_clusters(survey: Survey, facts: PublicFacts) -> PublicFacts:
    """The facts with public weights, and clusters numbered by these too, which are published with the numbers."""
    psu_stratum, index = survey.index.psu_stratum, survey.index
    clusters = len(psu_stratum)
    found = weights_by(survey, cell_of_record(survey, facts), index.psu, clusters)
    cell, psu = np.divmod(found.group, clusters)
    distinct, weight = np.unique(found.value, return_inverse=True)
    number = number_clusters(cell * len(distinct) + weight, psu, found.count, psu_stratum)[psu]
    keys, group = np.unique(cell * clusters + number, return_inverse=True)
    order = np.lexsort((found.value, group))
    weights = PublicWeights(group[order], found.value[order], found.count[order])
    stratum = np.empty(clusters, np.int64)
    stratum[number] = psu_stratum[psu]
    own, cluster = np.divmod(keys, clusters)
    count = np.bincount(group, found.count).astype(np.int64)
    return replace(facts, cell=own, stratum=stratum[cluster], count=count, weights=weights, cluster=cluster)


def _numbered(column: pl.Series) -> Integers:
    key = column.to_physical().to_numpy()
    return group_ids(key, int(key.max()) + 1)[1].astype(np.int64)
