"""Groups: the public part of a survey, with one row for each combination of public values, stratum and cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from svysynth.core.grouping import Integers
from svysynth.core.safe_repr import outlined
from svysynth.survey.clusters import number_clusters
from svysynth.survey.design import Design, DesignIndex


@outlined
@dataclass(frozen=True, eq=False)
class Groups:
    """The public part of a survey: each combination of public columns, stratum and cluster, and how often it occurs."""

    frame: pl.DataFrame
    """One row for each group, in the order of the cells, then of the strata, then of the clusters.

    Clusters have new numbers (`clusters.py`), unless their column is one of the public ones.
    """
    count: Integers
    cell: Integers
    """The position of each group's cell among the cells that have records."""


def numbered_units(
    design: Design, index: DesignIndex, published: tuple[str, ...], cell: Integers, count: Integers
) -> tuple[Integers, int, list[pl.Series]]:
    """The stratum or the cluster of every record, how many there are, and the column of the clusters' new numbers.

    There is no such column if the clusters are published as they are, or if there are none.
    """
    column = design.cluster
    if column is None or index.psu is None:
        return (index.stratum, index.strata, []) if design.strata else (np.zeros(1, np.int64), 1, [])
    number = number_clusters(cell, index.psu, count, index.psu_stratum)[index.psu]
    numbered = [] if column in published else [pl.Series(column, number + 1)]
    return number, len(index.psu_stratum), numbered
