"""A new model is a file and a line: a toy, from the spec through release, manifest, report and verification."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from jax.scipy.stats import norm

import svysynth
from repeatable import repeat
from svysynth.core import registry
from svysynth.core.registry import MODELS, ListedModel, mechanism_names
from svysynth.core.spec.whole import parse_spec
from svysynth.estimation.combining import CombiningRule
from svysynth.evaluation.frontier import frontier
from svysynth.models.base import Model, Sampling, Traits
from svysynth.models.sufficient_statistics import linear_statistics
from svysynth.models.whitening import Whitening
from svysynth.privacy.ledger import open_budget

# --- the file ---


@dataclass(frozen=True)
class Independent:
    """t and v are normal given x, and independent of each other."""

    name = "toy"
    sampling = Sampling()
    traits = Traits()
    combining = CombiningRule()
    coefficients = ()
    weighting_bias = None
    covariance_prior = None

    @classmethod
    def from_spec(cls, settings, weight_public):
        return cls()

    def statistics(self, records, alpha):
        return linear_statistics(records, alpha)

    def whitening(self, statistics):
        spread = jnp.sqrt(jnp.diagonal(statistics.scatter) / statistics.total)
        center = jnp.concatenate([statistics.coefficients.T.reshape(-1), jnp.log(spread)])
        root = jnp.kron(jnp.diag(spread), jnp.linalg.cholesky(statistics.gram_inverse))
        return Whitening(
            center, jax.scipy.linalg.block_diag(root, jnp.diag(jnp.full(2, (2 * statistics.total) ** -0.5)))
        )

    def log_density(self, z, statistics):
        beta, log_spread = self.parts(z)
        off = beta - statistics.coefficients.T
        form = jnp.diagonal(statistics.scatter) + jnp.einsum("ik,kl,il->i", off, statistics.gram, off)
        likelihood = -statistics.total * log_spread - 0.5 * form * jnp.exp(-2 * log_spread)
        return likelihood.sum() - 0.5 * (beta**2).sum() / 100 - 0.5 * (log_spread**2).sum()

    def complete(self, key, z, statistics):
        beta, log_spread = self.parts(z)
        return {"beta_t": beta[0], "beta_v": beta[1], "spread": jnp.exp(log_spread)}

    def log_likelihood(self, parameters, t, v, x):
        one, two = parameters["spread"]
        return norm.logpdf(t, x @ parameters["beta_t"], one) + norm.logpdf(v, x @ parameters["beta_v"], two)

    def synthesize(self, key, parameters, x):
        noise = parameters["spread"][:, None] * jax.random.normal(key, (2, len(x)))
        smoothed = x @ parameters["beta_v"]
        return x @ parameters["beta_t"] + noise[0], smoothed + noise[1], smoothed

    @staticmethod
    def parts(z):
        return z[:-2].reshape(2, -1), z[-2:]


# --- the line ---

LINE = ListedModel("toy", f"{__name__}.Independent", "outcomes that do not go with the weights")

SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "w"
strata = "region"
public = ["region"]
population_total = 40000

[privacy]
mechanism = "toy"
guarantee = "asymptotic"
epsilon = 12.0
datasets = 3
draws = 400
budget = "people"
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "MODELS", (*MODELS, LINE))
    generator = np.random.default_rng(1)
    region = np.repeat(["a", "b"], 200)
    income = np.exp(10 + 0.3 * (region == "b") + 0.4 * generator.standard_normal(400)).round(2)
    weight = np.exp(0.4 * generator.standard_normal(400))
    frame = {"region": region, "income": income, "w": (weight * 40000 / weight.sum()).round(4)}
    pl.DataFrame(frame).write_csv(tmp_path / "people.csv")
    (tmp_path / "people.toml").write_text(SPEC)
    open_budget(tmp_path / "ledger.sqlite", "people", 100, "asymptotic")
    return svysynth.load_spec(tmp_path / "people.toml")


def test_it_keeps_the_contract(spec):
    assert isinstance(Independent(), Model)
    assert "toy" in mechanism_names(released=True)
    with pytest.raises(svysynth.SurveyError, match=r"'privacy.guarantee' must be 'asymptotic'"):
        parse_spec(SPEC.replace('"asymptotic"', '"global"'))


def test_it_is_released_and_verified(spec, tmp_path, monkeypatch):
    repeat(monkeypatch, 3)
    released = svysynth.release(spec, tmp_path / "release")
    assert released.tables.height == 6
    manifest = svysynth.verify(tmp_path / "release", tmp_path / "ledger.sqlite").manifest
    assert manifest.privacy.mechanism == "toy"
    assert manifest.model is not None
    report = (tmp_path / "release/public/report.html").read_text(encoding="utf-8")
    assert "TOY: synthetic data from outcomes that do not go with the weights" in report
    assert (tmp_path / "release/internal/report.html").exists()
    direct = svysynth.tabulate_all(
        svysynth.read_survey(tmp_path / "people.csv", outcome="income", weight="w", strata="region", public="region"),
        spec.requested_tables,
    )
    off = (released.tables["estimate"] - direct["estimate"]) / (
        direct["se"].fill_null(0) + released.tables["se"] + 1e-9
    )
    assert off.abs().max() < 4


def test_it_has_a_frontier(spec):
    survey = svysynth.read_survey(
        spec.survey.data, outcome="income", weight="w", strata="region", public="region", population_total=40000
    )
    found = frontier(survey, spec, ["toy"], [12.0], [3], svysynth.Streams.seeded(1), repeats=1)
    assert found["mechanism"].unique().to_list() == ["toy"]
