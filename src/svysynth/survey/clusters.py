"""Clusters: the numbers that clusters have in what is published.

Which records share a cluster is a public fact, as are the strata. The numbers of clusters in the confidential file stay
there. Published clusters are numbered anew, by an order that follows from their strata and the sizes of their cells.
Clusters that are alike in both come in the order of the file, so they exchange their numbers at random where something
of their own is published. Then the numbers say nothing that these sizes do not.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from svysynth.core.grouping import Integers, group_ids


def number_clusters(cell: Integers, psu: Integers, count: Integers, psu_stratum: Integers) -> Integers:
    """The new number of each cluster, from 0: ordered by its stratum and the sizes of its cells.

    `cell`, `psu` and `count` are of each record, or of groups of so many records; `psu_stratum` is the stratum of each
    cluster.
    """
    found, cell = group_ids(cell, int(cell.max()) + 1)  # so that the products below stay below 64 bits
    cells = len(found)
    keys, place = np.unique(psu.astype(np.int64) * cells + cell, return_inverse=True)
    size = np.bincount(place, count).astype(np.int64)
    starts = np.searchsorted(keys // cells, np.arange(len(psu_stratum) + 1))
    own = np.stack([keys % cells, size], axis=1)
    composition = [tuple(own[start:stop].ravel().tolist()) for start, stop in pairwise(starts)]
    order = sorted(range(len(composition)), key=lambda place: (int(psu_stratum[place]), composition[place]))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number


def exchange_alike(
    number: Integers, stratum: Integers, cell: Integers, count: Integers, generator: np.random.Generator
) -> Integers:
    """The numbers of the clusters of groups, exchanged at random among clusters with the same stratum and sizes."""
    sizes: dict[int, list[tuple[int, ...]]] = {}
    for own, *size in zip(number.tolist(), stratum.tolist(), cell.tolist(), count.tolist(), strict=True):
        sizes.setdefault(own, []).append(tuple(size))
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for own, found in sizes.items():
        alike.setdefault(tuple(sorted(found)), []).append(own)
    new: dict[int, int] = {}
    for same in alike.values():
        new.update(zip(same, generator.permutation(same).tolist(), strict=True))
    return np.array([new[own] for own in number.tolist()], np.int64)
