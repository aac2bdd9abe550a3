"""Weights in clusters: whether the weights vary within clusters, as a model with effects of clusters needs.

If all records of a cluster have the same weight (clusters drawn with probabilities in proportion to size, and equal
probabilities within them), the variance of weights within clusters is zero, and the model has no density.
"""

from __future__ import annotations

import numpy as np

from svysynth.core.column_storage import derive
from svysynth.core.grouping import group_ids
from svysynth.mechanisms.findings import Finding
from svysynth.models.records import within_groups
from svysynth.survey.survey import Survey

NEARLY_CONSTANT = 0.02
"""The standard deviation of log weights within a cluster, or a cell of it, below which they count as constant."""
MOST = 0.5
"""The share of records with such weights above which a release stops."""


def weights_in_clusters(survey: Survey) -> list[Finding]:
    """The finding for weights that hardly vary within clusters, or within the cells of clusters."""
    psu = survey.index.psu
    if psu is None or survey.weight_public:
        return []
    cluster = np.asarray(psu, np.int64)
    cells, cell = survey.present_cells(survey.public)
    crossed = group_ids(cluster * len(cells) + np.asarray(cell), (int(cluster.max()) + 1) * len(cells))[1]
    logs = derive(np.log, survey.weights)
    for group in (cluster, crossed):
        count, spread = within_groups(survey.engine, logs, group, int(group.max()) + 1)
        several = count > 1
        if count[several & (spread <= NEARLY_CONSTANT)].sum() > MOST * max(count[several].sum(), 1):
            return [
                Finding(
                    f"column '{survey.design.weight}'",
                    "the weights of most records are constant, or nearly, within their cluster",
                    "such weights cannot be modelled, and the attempt would spoil the model of the outcome",
                    "use guarantee = 'global', whose model allows such weights; or make direct tables with "
                    "`svysynth tables`",
                    stops=True,
                )
            ]
    return []
