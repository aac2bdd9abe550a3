"""Transforms: the scale on which models see the outcome, `log` for skewed amounts and `identity` for all others."""

from __future__ import annotations

from typing import Literal

import numpy as np

from svysynth.core.grouping import Floats

Transform = Literal["log", "identity"]


def transformed(outcome: Floats, transform: Transform, out: Floats | None = None) -> Floats:
    """t, the outcome on the scale of the model; with `out` it is written there."""
    return np.asarray(np.log(outcome, out=out)) if transform == "log" else outcome


def restored(t: Floats, transform: Transform) -> Floats:
    """The outcome of which t is the transform."""
    return np.asarray(np.exp(t)) if transform == "log" else t
