"""A small survey with answers of every kind, its spec for a release from margins, and an open budget."""

import numpy as np
import polars as pl

from svysynth.core.spec.whole import load_spec
from svysynth.privacy.ledger import open_budget

RECORDS = 400
SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "wt"
strata = "region"
public = ["region", "sex"]
population_total = 20000

[survey.variables.benefit]
kind = "amount"
bounds = [0, 5000]
[survey.columns.benefit]
missing = ["NA"]

[survey.variables.status]
kind = "category"
levels = ["a", "b", "c"]

[survey.variables.works]
kind = "yes/no"
yes = ["1"]
no = ["0"]
[survey.columns.works]
missing = ["NA"]

[privacy]
mechanism = "margins"
guarantee = "global"
epsilon = 20.0
datasets = 2
budget = "people"
bounds = { outcome = [0, 100000.0], weight = [5.0, 500.0] }

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean", "median"]
[[tables]]
by = ["sex"]
of = "benefit"
statistics = ["mean", "share(> 0)", "ratio(benefit, income)"]
[[tables]]
by = ["sex"]
of = "status"
[[tables]]
by = ["sex"]
of = "works"
statistics = ["mean", "answered"]
[[tables]]
by = ["status", "sex"]
within = ["sex"]
statistics = ["proportion", "mean"]
"""


def people(seed=3, records=RECORDS):
    """Answers that depend on each other and on the public columns; benefits with zeros and gaps, jobs with gaps."""
    generator = np.random.default_rng(seed)
    region = generator.choice(["east", "north", "south"], records)
    sex = generator.choice(["F", "M"], records)
    works = generator.random(records) < np.where(sex == "M", 0.7, 0.5)
    status = np.where(works, generator.choice(["a", "b"], records, p=[0.8, 0.2]), "c")
    income = np.exp(9 + 0.8 * works + 0.3 * (region == "south") + 0.5 * generator.standard_normal(records))
    benefit = np.where(works & (generator.random(records) < 0.7), 0.0, generator.gamma(2.0, 400.0, records))
    weight = 50 * np.exp(0.4 * generator.standard_normal(records))
    return pl.DataFrame(
        {
            "region": region,
            "sex": sex,
            "income": income.round(1),
            "wt": weight.round(2),
            "benefit": pl.Series(benefit.round(0)).set(pl.Series(generator.random(records) < 0.05), None),
            "status": status,
            "works": pl.Series(works.astype(int)).set(pl.Series(generator.random(records) < 0.05), None),
        }
    )


def make_household(folder, text=SPEC, frame=None):
    """The survey, its spec and a budget in a folder; the spec's path."""
    folder.mkdir(exist_ok=True)
    (people() if frame is None else frame).write_csv(folder / "people.csv", null_value="NA")
    (folder / "spec.toml").write_text(text)
    open_budget(folder / "ledger.sqlite", "people", 1000, load_spec(folder / "spec.toml").privacy.accounting)
    return folder / "spec.toml"
