"""What an object shows of itself: sizes and names, and nothing that a respondent said."""

import dataclasses
import functools
import importlib
import pkgutil
import re

import jax
import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.core.streams import Streams
from svysynth.estimation.combining import Synthetic
from svysynth.estimation.passes import Passes
from svysynth.mechanisms.pseudo_posterior.bias_correction import public_part
from svysynth.mechanisms.pseudo_posterior.calibration import fit_unweighted
from svysynth.mechanisms.pseudo_posterior.python_interface import Calibrated
from svysynth.models.records import make_records
from svysynth.models.sufficient_statistics import linear_statistics

HOLDS_DATA = re.compile(
    r"\b(Floats|Integers|Booleans|NDArray|Array|Column|DataFrame|Series|Parameters|Records|Survey|Fit|Moments|Streams)\b"
)
SALARY, WEIGHT = 123456.789, 98.7654321


def classes():
    """Every dataclass and named tuple of the package."""
    for found in pkgutil.walk_packages(svysynth.__path__, "svysynth."):
        if found.name != "svysynth.__main__":
            for thing in vars(importlib.import_module(found.name)).values():
                if isinstance(thing, type) and thing.__module__ == found.name:
                    yield from [thing] if dataclasses.is_dataclass(thing) or hasattr(thing, "_fields") else []


def test_every_class_that_holds_data_shows_its_outline():
    own = {kind.__repr__ for kind in (svysynth.Survey, svysynth.Release, svysynth.Regression, Synthetic, Calibrated)}
    for kind in classes():
        fields = {name: str(kind.__annotations__.get(name, "")) for name in getattr(kind, "__annotations__", {})}
        if any(HOLDS_DATA.search(annotation) for annotation in fields.values()):
            assert kind.__repr__.__module__ == "svysynth.core.safe_repr" or kind.__repr__ in own, kind


@pytest.fixture(scope="module")
def survey():
    noise = np.random.default_rng(1).normal(size=(2, 400))
    frame = pl.DataFrame(
        {
            "salary": SALARY * np.exp(0.3 * noise[0]),
            "weight": WEIGHT * np.exp(0.2 * noise[1]),
            "field": ["a", "b"] * 200,
            "region": ["n", "n", "s", "s"] * 100,
        }
    ).with_columns(pl.when(pl.int_range(pl.len()) == 0).then(SALARY).otherwise("salary").alias("salary"))
    roles = {"outcome": "salary", "weight": "weight", "public": ["field", "region"], "strata": "field"}
    return svysynth.read_survey(frame, **roles, population_total=40_000)


def reachable(thing, seen):
    """An object, and all that it leads to."""
    if id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, np.ndarray | jax.Array | pl.DataFrame | str | int | float):
        return
    inside = [*getattr(thing, "__dict__", {}).values()]
    if isinstance(thing, dict):
        inside += thing.values()
    elif isinstance(thing, tuple | list):
        inside += thing
    elif isinstance(thing, functools.partial):
        inside += [*thing.args, *thing.keywords.values()]
    for part in inside:
        reachable(part, seen)


def digits_of(things):
    """The first digits of every number in these objects' arrays."""
    arrays = [np.asarray(thing) for thing in things if isinstance(thing, np.ndarray | jax.Array)]
    arrays += [thing[name].to_numpy() for thing in things if isinstance(thing, pl.DataFrame) for name in thing.columns]
    numbers = np.concatenate([array.ravel() for array in arrays if array.dtype.kind == "f"])
    texts = {re.sub(r"[^0-9.].*", "", f"{abs(number):.12g}")[:6] for number in numbers}
    return {text for text in texts if len(text) == 6 and len(set(text) - {"0", "."}) > 1}


def test_nothing_that_is_made_on_the_way_shows_a_value(survey):
    streams = Streams.seeded(987654321012345)
    calibrated = svysynth.calibrate(svysynth.FBS(), survey, 60.0, 2, streams=streams, draws=400)
    fit = calibrated.calibration.fit
    synthetic = calibrated.synthesize(correction=False)
    made = [survey, survey.groups, survey.index, calibrated, synthetic, public_part(fit.records)]
    made += [fit_unweighted(svysynth.FBS(), fit.records, streams, 400), linear_statistics(fit.records, fit.alpha)]
    passes = Passes(survey, ("field",), 2, svysynth.EstimationSpec(), None, scaled=False)
    moments = passes.moments(survey.outcome_values)
    made += [passes, moments, passes.outcomes(survey.outcome_values, moments, None)]
    seen = {}
    reachable(made, seen)
    values = digits_of(list(seen.values()))
    assert "123456" in values
    ours = [thing for thing in seen.values() if type(thing).__module__.startswith("svysynth.")]
    assert len({type(thing) for thing in ours}) > 10
    for thing in ours:
        for text in (repr(thing), str(thing), f"{thing}", repr([thing]), repr({"a": thing})):
            numbers = set(re.findall(r"[0-9.]{6,}", text))
            assert not {number[:6] for number in numbers} & values, type(thing)
            assert "98765432101" not in text, type(thing)


def test_a_fit_and_its_records_show_their_sizes(survey):
    records = make_records(survey)
    assert repr(records).startswith("Records(t: ndarray of 400, v: ndarray of 400, cell: ndarray of 400, x: ")
    assert repr(Streams.seeded(3)) == "Streams(entropy: int, fresh: bool)"


def test_a_thing_that_has_not_been_charged_says_so(survey):
    calibrated = svysynth.calibrate(svysynth.FBS(), survey, 60.0, 2, streams=Streams.seeded(1), draws=400)
    assert "not charged" in repr(calibrated)
    assert "not charged" in repr(calibrated.synthesize(correction=False))
