"""A file of incomes that FBS and FBP are made for, and a folder with it, a spec and an open budget."""

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.cli.main import main
from svysynth.core.spec.estimation import TableSpec
from svysynth.mechanisms.suitability import examine_model

SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "region"
public = ["region", "sex"]
population_total = {total}

[privacy]
mechanism = "{mechanism}"
guarantee = "{guarantee}"
epsilon = 10.8
datasets = 2
draws = 400
correction = false
budget = "people"
bounds = {{ outcome = [0.1, 1000000.0], weight = [0.1, 5000.0] }}
"""
TABLES = [TableSpec(by=("region", "sex"))]


def people(size=2000, seed=1):
    """Lognormal incomes and weights in six cells: what FBS and FBP are made for."""
    generator = np.random.default_rng(seed)
    region, sex = np.arange(size) % 3, generator.integers(0, 2, size)
    noise = generator.standard_normal((2, size))
    income = np.exp(10 + 0.2 * region + 0.1 * sex + 0.5 * noise[0])
    weight = np.exp(3 + 0.3 * region + 0.2 * noise[0] + 0.4 * noise[1])
    labels = {"region": np.array(["a", "b", "c"])[region], "sex": np.array(["f", "m"])[sex]}
    return pl.DataFrame(labels | {"income": income, "wt": weight})


def survey_of(frame, **settings):
    roles = {"outcome": "income", "weight": "wt", "strata": "region", "public": ["region", "sex"]}
    return svysynth.read_survey(frame, **({"population_total": float(frame["wt"].sum())} | roles | settings))


def findings(frame, **settings):
    return examine_model(survey_of(frame, **settings), None, TABLES).findings


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code or 0


def house(folder, frame, mechanism="fbs", guarantee="asymptotic", changes=()):
    frame.write_csv(folder / "people.csv")
    text = SPEC.format(total=round(frame["wt"].sum()), mechanism=mechanism, guarantee=guarantee)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "s.toml").write_text(text)
    run("ledger", "open", folder / "s.toml", "--total", 100)
    return folder / "s.toml"
