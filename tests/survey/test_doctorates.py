"""The stand-in reproduces the paper's published Sample columns."""

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth.survey import doctorates as standin


@pytest.fixture(scope="module")
def direct(doctorate_frame):
    survey = svysynth.read_survey(
        doctorate_frame,
        outcome="salary",
        weight="weight",
        strata="field",
        public=["field", "gender"],
        labels={
            "field": {str(code): str(code) for code in range(1, 9)},
            "gender": {code: label for label, code in standin.GENDERS.items()},
        },
    )
    return svysynth.tabulate(survey, ["field", "gender"])


@pytest.mark.parametrize(("statistic", "table"), [("count", "sdr_counts"), ("mean", "sdr_salary")])
def test_every_published_cell_is_reproduced(direct, statistic, table):
    """Estimates within 0.1% and standard errors within 2% of the published ones, in all 27 cells."""
    both = direct.filter(statistic=statistic).join(standin.published_table(table), on=["field", "gender"])
    assert both.height == 27
    np.testing.assert_allclose(both["estimate"], both["sample_estimate"], rtol=1e-3)
    np.testing.assert_allclose(both["se"], both["sample_se"], rtol=0.02)


def test_layout_and_correlation(doctorate_frame):
    assert doctorate_frame.height == standin.RECORDS
    assert doctorate_frame["weight"].sum() == pytest.approx(standin.POPULATION, rel=1e-4)
    assert (doctorate_frame["salary"] % 1000 == 0).all()
    correlation = np.corrcoef(doctorate_frame["salary"], doctorate_frame["weight"])[0, 1]
    assert correlation == pytest.approx(0.09, abs=0.01)


def test_it_is_always_the_same(doctorate_frame):
    assert standin.doctorates().equals(doctorate_frame)
    assert doctorate_frame.select(pl.col("salary").sum()).item() > 0
