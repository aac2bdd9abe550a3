"""Published shifts: `centre-shifts.parquet`, from which standard errors of samples of clusters can be made again.

It has how far the weights α moved the centre in surveys that were simulated from the released draws
(`bias_correction.py`), for each public cell. It has no rows if too few such surveys could be made.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl

from svysynth.estimation.centre_shifts import CentreShifts
from svysynth.mechanisms.pseudo_posterior.bias_correction import Undone
from svysynth.mechanisms.synthetic_files import SHIFTS
from svysynth.privacy.manifest import Manifest
from svysynth.privacy.release import MICRODATA_DIGITS, rounded
from svysynth.survey.survey import Survey


def centre_shifts(undone: Undone | None, survey: Survey) -> CentreShifts | None:
    """The shifts as they are published, rounded; None for a sample without clusters, or draws that stay uncorrected."""
    if undone is None or survey.design.cluster is None:
        return None
    cells, _, _ = survey.model_cells()
    levels = [survey.levels(column) for column in survey.public]
    codes = np.unravel_index(cells, [len(labels) for labels in levels])
    labels = zip(*(np.array(names, object)[code] for names, code in zip(levels, codes, strict=True)), strict=True)
    found = np.empty((0, 2, len(cells))) if undone.centres is None else undone.centres
    frame = CentreShifts(tuple(labels), found[:, 0], found[:, 1]).frame(survey.public, survey.outcome)
    return CentreShifts.of_frame(rounded(frame, MICRODATA_DIGITS), survey.public, survey.outcome)


def shifts_parquet(shifts: CentreShifts, survey: Survey) -> bytes:
    """The file: a row for each shift (`id`) and cell, with what is added to the transformed outcome and log weight."""
    content = io.BytesIO()
    shifts.frame(survey.public, survey.outcome).write_parquet(content)
    return content.getvalue()


def are_published(manifest: Manifest) -> bool:
    """Whether a release has the file: if the sample has clusters, and the draws were to be corrected."""
    return manifest.survey.cluster is not None and bool(manifest.privacy.correction)


def read_shifts(public: Path, manifest: Manifest) -> CentreShifts | None:
    """The shifts in a public folder; None if the release has no such file."""
    if not are_published(manifest):
        return None
    frame = pl.read_parquet(public / SHIFTS)
    return CentreShifts.of_frame(frame, manifest.survey.public, manifest.survey.outcome)
