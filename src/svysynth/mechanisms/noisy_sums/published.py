"""Published: what a release from noisy sums gives out beside its tables: the measurement and the draws.

`measurement.json` has the noisy histograms, if there are any, and sums with the scales of their noise, the public facts
that they are about, and the seed and the draws of the synthetic files. `draws.parquet` has what each draw says of each
cell. Tables and synthetic files follow from these two without anything random that is not in them, so that anyone can
make them again, and an analysis of their own.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl

from svysynth.groups import Floats
from svysynth.mechanisms.noisy_sums.facts import PublicFacts
from svysynth.mechanisms.noisy_sums.figures import CellDraws
from svysynth.mechanisms.noisy_sums.files import FilePlan
from svysynth.mechanisms.noisy_sums.measurement import LARGEST, Level, Measurement, NoisySizes, Plan, Use, Weighted
from svysynth.mechanisms.noisy_sums.scaling import Scale, Scaling
from svysynth.mechanisms.noisy_sums.sizes import SENSITIVITY
from svysynth.spec import BoundsSpec

MEASUREMENT, DRAWS = "measurement.json", "draws.parquet"
FORMAT = 3
OF_CELLS = ("outcome_mean", "weight_mean", "outcome_misfit", "weight_misfit")
SIZE = "cell_size"
"""Of cells, drawn: where whole records are protected."""
OF_DRAWS = ("outcome_variance", "weight_variance", "covariance")


def measurement_json(measurement: Measurement, facts: PublicFacts, files: FilePlan | None = None) -> bytes:
    """The measurement, the public facts and what synthetic files follow from, for people and machines."""
    plan, scaling = measurement.plan, measurement.scaling
    content: dict[str, Any] = {
        "format": FORMAT,
        "records": measurement.records,
        "population_total": measurement.population_total,
        "transform": measurement.transform,
        "bounds": measurement.bounds.model_dump(mode="json"),
        "largest": LARGEST,
        "reach": scaling.reach,
        "outcome_scale": vars(scaling.outcome),
        "weight_scale": vars(scaling.weight),
        "sizes": None
        if measurement.sizes is None
        else {"epsilon": str(plan.sizes), "values": measurement.sizes.counts.tolist()},
        "scales": "histograms" if plan.histogram else "standin",
        "histograms": {
            "epsilon": str(plan.histogram),
            "outcome": measurement.outcome_bands.tolist(),
            "weight": measurement.weight_bands.tolist(),
        }
        if plan.histogram
        else None,
        "sums": [
            {
                "columns": level.columns,
                "epsilon": str(epsilon),
                "row_of_cell": level.place.tolist(),
                "values": level.sums.tolist(),
            }
            for level, (_, epsilon) in zip(measurement.levels, plan.levels, strict=True)
        ],
        "weighted_sums": {
            "columns": measurement.weighted.columns,
            "both": plan.weighted.both,
            "epsilon": str(plan.weighted.epsilon),
            "row_of_cell": measurement.weighted.place.tolist(),
            "values": measurement.weighted.sums.tolist(),
            "reach": measurement.weighted_step * LARGEST,
        },
        "squares": {"epsilon": str(plan.squares), "values": measurement.squares.tolist()},
        "public": {
            "levels": {column: list(labels) for column, labels in facts.labels.items()},
            "cells": facts.codes.tolist(),
            "groups": {name: getattr(facts, name).tolist() for name in ("cell", "stratum", "count")},
        },
    }
    if files is not None:
        content["files"] = {"seed": f"{files.seed:x}", "draws": list(files.draws)}
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_measurement(text: bytes) -> tuple[Measurement, PublicFacts]:
    """What `measurement_json` wrote."""
    content: dict[str, Any] = json.loads(text)
    if content["format"] != FORMAT or content["largest"] != LARGEST:
        raise ValueError("another format")
    sums, squares = content["sums"], content["squares"]
    histograms = content["histograms"] or {"epsilon": 0, "outcome": [], "weight": []}
    if (content["scales"] == "histograms") != (Fraction(histograms["epsilon"]) > 0):
        raise ValueError("the scales are not from what the measurement says")
    weighted, sizes = content["weighted_sums"], content["sizes"]
    plan = Plan(
        Fraction(histograms["epsilon"]),
        tuple((tuple(level["columns"]), Fraction(level["epsilon"])) for level in sums),
        Fraction(squares["epsilon"]),
        Weighted(tuple(weighted["columns"]), bool(weighted["both"]), Fraction(weighted["epsilon"])),
        Fraction() if sizes is None else Fraction(sizes["epsilon"]),
    )
    parts = [*plan.levels, (plan.weighted.columns, plan.weighted.epsilon)]
    levels = [
        Level(
            columns,
            np.array(level["row_of_cell"], np.int64),
            np.array(level["values"], np.int64),
            Use("sums", 2 * LARGEST, epsilon).scale,
        )
        for level, (columns, epsilon) in zip([*sums, weighted], parts, strict=True)
    ]
    public = content["public"]
    facts = PublicFacts(
        {column: tuple(labels) for column, labels in public["levels"].items()},
        np.array(public["cells"], np.int64).reshape(len(public["cells"]), len(public["levels"])),
        *(np.array(public["groups"][name], np.int64) for name in ("cell", "stratum", "count")),
    )
    measurement = Measurement(
        int(content["records"]),
        float(content["population_total"]),
        content["transform"],
        BoundsSpec.model_validate(content["bounds"]),
        plan,
        np.array(histograms["outcome"], np.int64),
        np.array(histograms["weight"], np.int64),
        Scaling(Scale(**content["outcome_scale"]), Scale(**content["weight_scale"]), content["reach"]),
        tuple(levels[:-1]),
        np.array(squares["values"], np.int64),
        Use("squares", 2 * LARGEST**2, plan.squares).scale,
        levels[-1],
        None
        if sizes is None
        else NoisySizes(np.array(sizes["values"], np.int64), Use("sizes", SENSITIVITY, plan.sizes).scale),
    )
    return measurement, facts


def read_files(text: bytes) -> FilePlan:
    """What `measurement_json` says of the synthetic files."""
    files: dict[str, Any] = json.loads(text)["files"]
    return FilePlan(int(files["seed"], 16), tuple(int(draw) for draw in files["draws"]))


def draws_parquet(drawn: CellDraws, facts: PublicFacts) -> bytes:
    """A row for each draw and cell, as a Parquet file."""
    draws, cells = drawn.outcome_mean.shape
    columns: dict[str, Any] = {"draw": np.repeat(np.arange(1, draws + 1), cells)}
    for number, (column, levels) in enumerate(facts.labels.items()):
        labels = np.array(levels, object)[facts.codes[:, number]]
        columns[column] = pl.Series(np.tile(labels, draws), dtype=pl.String)
    columns |= {name: getattr(drawn, name).reshape(-1) for name in OF_CELLS}
    columns |= {} if drawn.size is None else {SIZE: drawn.size.reshape(-1)}
    columns |= {name: np.repeat(getattr(drawn, name), cells) for name in OF_DRAWS}
    content = io.BytesIO()
    pl.DataFrame(columns).write_parquet(content)
    return content.getvalue()


def read_draws(content: bytes, cells: int) -> CellDraws:
    """What `draws_parquet` wrote."""
    frame = pl.read_parquet(io.BytesIO(content))

    def column(name: str) -> Floats:
        return frame[name].to_numpy().reshape(-1, cells)

    found = CellDraws(*(column(name) for name in OF_CELLS), *(column(name)[:, 0] for name in OF_DRAWS))
    return replace(found, size=column(SIZE)) if SIZE in frame.columns else found
