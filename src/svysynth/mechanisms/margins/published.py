"""Published: measurement.json, the noisy margins and sums of a release, with their ε and the codings of answers.

Anybody can fit the same or another model to them, and make further files.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np

from svysynth.core.grouping import Integers
from svysynth.mechanisms.margins.coding import Coding
from svysynth.mechanisms.margins.measuring import Measurement
from svysynth.mechanisms.margins.planning import Plan, Use

MEASUREMENT = "measurement.json"
FORMAT = 1


def measurement_json(measurement: Measurement) -> bytes:
    """A measurement, for people and machines."""
    plan = measurement.plan
    content: dict[str, Any] = {
        "format": FORMAT,
        "answers": [asdict(one) for one in measurement.codings],
        "limits": {name: list(ends) for name, ends in measurement.limits.items()},
        "narrow_bands": _with_values(plan.bands, measurement.bands),
        "sums_of_amounts": _with_values(plan.amounts, [np.array(one) for one in measurement.amounts]),
        "sums_of_weights": _with_values(plan.weights, measurement.weights),
        "margins": _with_values(plan.margins, measurement.margins),
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _with_values(uses: tuple[Use, ...], values: Any) -> list[dict[str, Any]]:
    return [
        {**asdict(use), "epsilon": str(use.epsilon), "values": np.asarray(found).tolist()}
        for use, found in zip(uses, values, strict=True)
    ]


def read_measurement(text: bytes) -> Measurement:
    """Read what `measurement_json` wrote."""
    content: dict[str, Any] = json.loads(text)
    if content["format"] != FORMAT:
        raise ValueError("the measurement has another format")
    codings = tuple(_coding(one) for one in content["answers"])
    parts = ("narrow_bands", "sums_of_amounts", "sums_of_weights", "margins")
    uses = {part: tuple(_use(one) for one in content[part]) for part in parts}

    def values(part: str) -> list[Any]:
        return [one["values"] for one in content[part]]

    def whole(part: str) -> tuple[Integers, ...]:
        return tuple(np.array(one, np.int64) for one in values(part))

    return Measurement(
        Plan(*(uses[part] for part in parts)),
        codings,
        whole("narrow_bands"),
        tuple(float(one) for one in values("sums_of_amounts")),
        {name: (low, high) for name, (low, high) in content["limits"].items()},
        tuple(np.array(one, float) for one in values("sums_of_weights")),
        whole("margins"),
    )


def _coding(content: dict[str, Any]) -> Coding:
    (low, high), wide = content["bounds"], tuple(content["wide"])
    return Coding(content["name"], content["kind"], content["levels"], (low, high), content["may_miss"], wide)


def _use(content: dict[str, Any]) -> Use:
    names = tuple(content["answers"]), tuple(content["columns"])
    return Use(content["name"], *names, int(content["sensitivity"]), Fraction(content["epsilon"]))
