"""Published: the files that a release from noisy sums publishes besides its tables: the measurement and the draws.

`measurement.json` has the noisy sums and, if there are any, noisy histograms, with the ε of each part, the public facts
that they refer to, and the seed and the draws of the synthetic files. `draws.parquet` has the figures of each cell in
each draw. If weights are public, `weights.parquet` has each weight that occurs in a group of records, and how often.
Tables and synthetic files follow from these files without further random numbers. So anybody can make them again, or do
an analysis of their own.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.grouping import Floats
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.mechanisms.noisy_sums.implied_tables import CellDraws
from svysynth.mechanisms.noisy_sums.imputed_files import FilePlan
from svysynth.mechanisms.noisy_sums.measuring.between_clusters import Between, between_sensitivity
from svysynth.mechanisms.noisy_sums.measuring.measurement import (
    Level,
    Measurement,
    NoisySizes,
    Plan,
    Use,
    Weighted,
    squares_sensitivity,
)
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts
from svysynth.mechanisms.noisy_sums.measuring.public_weights import PublicWeights
from svysynth.mechanisms.noisy_sums.measuring.scaling import Scale, Scaling
from svysynth.mechanisms.noisy_sums.measuring.sizes import SENSITIVITY
from svysynth.mechanisms.noisy_sums.measuring.whole_numbers import LARGEST

MEASUREMENT, DRAWS, WEIGHTS = "measurement.json", "draws.parquet", "weights.parquet"
FORMAT = 3
OF_CELLS = ("outcome_mean", "weight_mean", "outcome_misfit", "weight_misfit")
SIZE = "cell_size"
"""The drawn size of a cell, if whole records are protected."""
OF_DRAWS = ("outcome_variance", "weight_variance", "covariance")
BETWEEN = ("cluster_outcome_variance", "cluster_covariance", "cluster_weight_variance")
"""The parts of these that are between clusters, if the design has clusters; the first alone if weights are public."""
OF_WEIGHTS = ("weight_mean", "weight_misfit", "weight_variance")
"""Columns that are absent if weights are public. The covariance is then with the scores of weights
(`measuring/public_weights.py`)."""


def measurement_json(measurement: Measurement, facts: PublicFacts, files: FilePlan | None = None) -> bytes:
    """The measurement, the public facts, and the seed and draws of synthetic files, for people and machines."""
    plan, scaling = measurement.plan, measurement.scaling
    content: dict[str, Any] = {
        "format": FORMAT,
        "records": measurement.records,
        "population_total": measurement.population_total,
        "transform": measurement.transform,
        "bounds": measurement.bounds.model_dump(mode="json"),
        "weights_public": plan.weights_public,
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
            **({} if facts.fpc is None else {"fpc": facts.fpc.tolist()}),
        },
    }
    between = measurement.between
    if facts.cluster is not None and between is not None:
        content["public"]["groups"]["cluster"] = facts.cluster.tolist()
        content["between_clusters"] = {
            "epsilon": str(plan.clusters),
            "centre": between.centre.tolist(),
            "limit": between.limit,
            "values": between.squares.tolist(),
        }
    if files is not None:
        content["files"] = {"seed": f"{files.seed:x}", "draws": list(files.draws)}
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_measurement(text: bytes, weights: PublicWeights | None = None) -> tuple[Measurement, PublicFacts]:
    """Read what `measurement_json` wrote; weights that are public become part of the facts."""
    content: dict[str, Any] = json.loads(text)
    if content["format"] != FORMAT or content["largest"] != LARGEST:
        raise ValueError("the measurement has another format")
    if content["weights_public"] != (weights is not None):
        raise ValueError("the measurement is not for these weights")
    sums, squares = content["sums"], content["squares"]
    histograms = content["histograms"] or {"epsilon": 0, "outcome": [], "weight": []}
    if (content["scales"] == "histograms") != (Fraction(histograms["epsilon"]) > 0):
        raise ValueError("the source of the scales does not match the histograms")
    weighted, sizes = content["weighted_sums"], content["sizes"]
    plan = Plan(
        Fraction(histograms["epsilon"]),
        tuple((tuple(level["columns"]), Fraction(level["epsilon"])) for level in sums),
        Fraction(squares["epsilon"]),
        Weighted(tuple(weighted["columns"]), bool(weighted["both"]), Fraction(weighted["epsilon"])),
        Fraction() if sizes is None else Fraction(sizes["epsilon"]),
        weights is not None,
        Fraction(content.get("between_clusters", {"epsilon": 0})["epsilon"]),
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
    cell, stratum, count = (np.array(public["groups"][name], np.int64) for name in ("cell", "stratum", "count"))
    facts = PublicFacts(
        {column: tuple(labels) for column, labels in public["levels"].items()},
        np.array(public["cells"], np.int64).reshape(len(public["cells"]), len(public["levels"])),
        cell,
        stratum,
        count,
        weights,
        cluster=np.array(public["groups"]["cluster"], np.int64) if plan.clusters else None,
        fpc=np.array(public["fpc"], np.float64) if "fpc" in public else None,
    )
    scales = Scale(**content["outcome_scale"]), Scale(**content["weight_scale"])
    scaling = Scaling(*scales, content["reach"], plan.weights_public)
    measurement = Measurement(
        int(content["records"]),
        float(content["population_total"]),
        content["transform"],
        BoundsSpec.model_validate(content["bounds"]),
        plan,
        np.array(histograms["outcome"], np.int64),
        np.array(histograms["weight"], np.int64),
        scaling,
        tuple(levels[:-1]),
        np.array(squares["values"], np.int64),
        Use("squares", squares_sensitivity(len(squares["values"]), scaling.reach), plan.squares).scale,
        levels[-1],
        None
        if sizes is None
        else NoisySizes(np.array(sizes["values"], np.int64), Use("sizes", SENSITIVITY, plan.sizes).scale),
        _read_between(content["between_clusters"], plan.clusters, plan.weights_public) if plan.clusters else None,
    )
    return measurement, facts


def _read_between(content: dict[str, Any], epsilon: Fraction, weights_public: bool) -> Between:
    limit = int(content["limit"])
    scale = Use("squares between clusters", between_sensitivity(limit, weights_public), epsilon).scale
    return Between(np.array(content["centre"], np.int64), limit, np.array(content["values"], np.int64), scale)


def read_files(text: bytes) -> FilePlan:
    """Read the seed and the draws of the synthetic files from what `measurement_json` wrote."""
    files: dict[str, Any] = json.loads(text)["files"]
    return FilePlan(int(files["seed"], 16), tuple(int(draw) for draw in files["draws"]))


def draws_parquet(drawn: CellDraws, facts: PublicFacts) -> bytes:
    """A row for each draw and cell, as a Parquet file."""
    draws, cells = drawn.outcome_mean.shape
    columns: dict[str, Any] = {"draw": np.repeat(np.arange(1, draws + 1), cells)}
    for number, (column, levels) in enumerate(facts.labels.items()):
        labels = np.array(levels, object)[facts.codes[:, number]]
        columns[column] = pl.Series(np.tile(labels, draws), dtype=pl.String)
    known = facts.weights is not None  # if so, draws have no figures of weights
    columns |= {name: getattr(drawn, name).reshape(-1) for name in OF_CELLS if not (known and name in OF_WEIGHTS)}
    columns |= {} if drawn.size is None else {SIZE: drawn.size.reshape(-1)}
    columns |= {name: np.repeat(getattr(drawn, name), cells) for name in OF_DRAWS if not (known and name in OF_WEIGHTS)}
    if drawn.between is not None:
        columns |= {name: np.repeat(values, cells) for name, values in zip(BETWEEN, drawn.between.T, strict=False)}
    content = io.BytesIO()
    pl.DataFrame(columns).write_parquet(content)
    return content.getvalue()


def read_draws(content: bytes, cells: int) -> CellDraws:
    """Read what `draws_parquet` wrote."""
    frame = pl.read_parquet(io.BytesIO(content))

    def column(name: str) -> Floats:
        if name in OF_WEIGHTS and name not in frame.columns:  # weights are public
            return np.empty((frame.height // cells, 0))
        return frame[name].to_numpy().reshape(-1, cells)

    of_draws = {name: column(name) for name in OF_DRAWS}
    of_draws = {name: values[:, 0] if values.size else values for name, values in of_draws.items()}
    found = CellDraws(**{name: column(name) for name in OF_CELLS}, **of_draws)
    if BETWEEN[0] in frame.columns:
        own = [column(name)[:, 0] for name in BETWEEN if name in frame.columns]
        found = replace(found, between=np.stack(own, axis=1))
    return replace(found, size=column(SIZE)) if SIZE in frame.columns else found


def weights_parquet(weights: PublicWeights) -> bytes:
    """A row for each weight that occurs in a group, with the number of the group in measurement.json, from 0."""
    content = io.BytesIO()
    columns = {"group": weights.group, "weight": weights.value, "count": weights.count}
    pl.DataFrame(columns).write_parquet(content)
    return content.getvalue()


def read_weights(content: bytes) -> PublicWeights:
    """Read what `weights_parquet` wrote."""
    frame = pl.read_parquet(io.BytesIO(content))
    group, value, count = (frame[name].to_numpy() for name in ("group", "weight", "count"))
    ordered = np.lexsort((value, group))
    if not ((ordered == np.arange(len(group))).all() and (value > 0).all() and (count > 0).all()):
        raise ValueError("the weights are not in order")
    return PublicWeights(group.astype(np.int64), value.astype(float), count.astype(np.int64))
