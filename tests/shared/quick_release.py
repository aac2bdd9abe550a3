"""A release without a fit, for tests of what happens to releases."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from no_evidence import NoEvidence
from repeatable import repeatable
from svysynth import pipeline
from svysynth.core.spec.whole import load_spec
from svysynth.mechanisms.pseudo_posterior import mechanism as pseudo_posterior
from svysynth.models.synthesis import make_synthetic
from svysynth.privacy.ledger import open_budget
from svysynth.privacy.release import MICRODATA_DIGITS, rounded
from svysynth.publishing import internal_folder as internal
from svysynth.publishing import public_folder as publish
from svysynth.survey.survey import SurveyInMemory

SPEC = """
[survey]
data = "people.csv"
outcome = "salary"
weight = "wt"
strata = "region"
public = ["region", "sex"]
population_total = 5000

[privacy]
guarantee = "asymptotic"
mechanism = "fbp"
epsilon = 12.0
datasets = 2
draws = 400
correction = false
budget = "people"

[[tables]]
by = ["region", "sex"]

[[tables]]
name = "money"
by = ["sex"]
statistics = ["total", "proportion"]
"""
RECORDS = 120


def drawn_by_hand(model, survey, epsilon, datasets, *_, **__):
    """Stands in for `_calibrate`: synthetic surveys from no model, which verification cannot tell and need not."""
    generator = np.random.default_rng(8)

    def one():
        weights = np.exp(generator.standard_normal((2, len(survey))))
        weights *= 5000 / weights.sum(axis=1, keepdims=True)
        if survey.weight_public:
            weights = np.stack([survey.weights, survey.weights])
        frame = survey.frame.select(name for name in survey.published if name != survey.design.weight)
        frame = frame.with_columns(
            pl.Series(survey.outcome, np.exp(10 + 0.4 * generator.standard_normal(len(survey)))),
            pl.Series("weight", weights[0]),
            pl.Series("weight_unsmoothed", weights[1]),
        )
        design = replace(survey.design, weight="weight")
        frame = rounded(frame, MICRODATA_DIGITS)
        roles = survey.outcome, design, survey.public, survey.transform, 5000.0
        restricted = {"domain": survey.domain, "domains": survey.domains}
        return SurveyInMemory(*roles, weight_public=survey.weight_public, **restricted, frame=frame)

    synthetic = make_synthetic(tuple(one() for _ in range(datasets)), model)
    return SimpleNamespace(calibration=None, synthesize=lambda **_: synthetic)


def make_release(
    folder, text=SPEC, pages=False, regions=("east", "north", "south"), sexes="FM", outcome="salary", streams=None
):
    """A release made without a fit, in `folder/release`, and without reports unless they are asked for."""
    generator = np.random.default_rng(5)
    columns = {
        "region": generator.choice(regions, RECORDS),
        "sex": generator.choice(list(sexes), RECORDS),
        "block": generator.choice(["b1", "b2"], RECORDS),
        outcome: np.exp(10 + generator.standard_normal(RECORDS)),
        "households": np.full(RECORDS, 100.0),
        "wt": 5000 / RECORDS * np.exp(generator.standard_normal(RECORDS) - 0.5),
    }
    folder.mkdir(exist_ok=True)
    pl.DataFrame(columns).write_csv(folder / "people.csv", quote_style="non_numeric")
    (folder / "spec.toml").write_text(text)
    open_budget(folder / "ledger.sqlite", "people", 1000, "asymptotic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pseudo_posterior, "calibrate_suitable", drawn_by_hand)
        patch.setattr(pseudo_posterior, "CalibrationEvidence", lambda _: NoEvidence())
        if not pages:
            patch.setattr(publish, "public_page", lambda _: "<p>page</p>")
            patch.setattr(internal, "internal_page", lambda *_: "<p>page</p>")
        spec = load_spec(folder / "spec.toml")
        pipeline.release(spec, folder / "release", streams or repeatable())
    return folder
