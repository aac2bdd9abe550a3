"""Groups: the public part of a survey, which is published as it is."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from svysynth.core.grouping import Integers
from svysynth.core.safe_repr import outlined


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
