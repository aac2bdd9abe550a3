"""Transforms: the scale on which models see the outcome, `log` for skewed amounts and `identity` for other outcomes."""

from __future__ import annotations

from typing import Literal

import numpy as np

from svysynth.core.grouping import Floats

Transform = Literal["log", "identity"]


def transformed(outcome: Floats, transform: Transform, out: Floats | None = None) -> Floats:
    """t, the outcome on the model's scale; with `out`, logarithms are written there."""
    return np.asarray(np.log(outcome, out=out)) if transform == "log" else outcome


def restored(t: Floats, transform: Transform) -> Floats:
    """The outcome whose transform is t."""
    return np.asarray(np.exp(t)) if transform == "log" else t
