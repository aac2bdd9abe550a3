"""Two surveys that differ in the answers of one respondent, each with a spec and an open budget."""

import numpy as np
import polars as pl
from scipy.special import ndtri

from svysynth.core.spec.whole import load_spec
from svysynth.privacy.ledger import open_budget

RECORDS = 64
SPEC = """
[about]
title = "Incomes"

[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "region"
public = ["region", "sex"]
population_total = 3200

[privacy]
mechanism = "{mechanism}"
guarantee = "{guarantee}"
epsilon = 8.0
datasets = 2
draws = 400
budget = "people"
bounds = {{ outcome = [1000.0, 1000000.0], weight = [1.0, 1000.0] }}

[model]
formula = "1"

[[tables]]
by = ["region", "sex"]
"""
TRIED = {
    "fbs asymptotic": ("fbs", "asymptotic"),
    "fbs global": ("fbs", "global"),
    "margins": ("margins", "global"),
    "laplace": ("laplace", "global"),
}
ANSWERS = (22_000.0, 50.0), (31_234.5, 87.6)
"""Of the respondent who differs: outcome and weight in the two worlds."""


def make_house(folder, mechanism, answers):
    """A survey whose seventh respondent gives these answers, its spec and a budget; the spec's path."""
    folder.mkdir()
    generator = np.random.default_rng(8)
    score = ndtri((np.arange(RECORDS) + 0.5) / RECORDS)
    income = np.exp(10 + 0.5 * generator.permutation(score))
    weight = 50 * np.exp(0.5 * generator.permutation(score))
    income[6], weight[6] = answers
    labels = {
        "region": np.where(np.arange(RECORDS) % 2, "north", "south"),
        "sex": np.where(np.arange(RECORDS) % 3, "F", "M"),
    }
    pl.DataFrame(labels | {"income": income, "wt": weight}).write_csv(folder / "people.csv")
    name, guarantee = TRIED[mechanism]
    (folder / "s.toml").write_text(SPEC.format(mechanism=name, guarantee=guarantee))
    open_budget(folder / "ledger.sqlite", "people", 1000, load_spec(folder / "s.toml").privacy.accounting)
    return folder / "s.toml"
