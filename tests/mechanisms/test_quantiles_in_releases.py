"""Releases with medians, quantiles and shares above a threshold: from synthetic files, and refused from sums alone."""

import json
import math

import numpy as np
import polars as pl
import pytest

import svysynth
from quick_release import SPEC, make_release
from svysynth import SurveyError, TableSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.whole import parse_spec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import combine, combine_estimates
from svysynth.evaluation.frontier import refuse_unsupported
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.base import find_public
from svysynth.mechanisms.model_fit import measure_misfit
from svysynth.mechanisms.noisy_sums.from_public_folder import FromPublic
from svysynth.mechanisms.noisy_tables.tables import additive_tables
from svysynth.mechanisms.paper_comparison.tables import laplace_tables
from svysynth.mechanisms.suitability import judge_misfit
from svysynth.models.records import make_records
from svysynth.models.sufficient_statistics import plain_statistics
from svysynth.privacy.ledger import show
from svysynth.publishing.verdict import beside, judge_release
from svysynth.publishing.verification import verify_release

NAMES = ["median", "quantile(0.9)", "share(> 25000)"]
ASKED = SPEC.replace('statistics = ["total", "proportion"]', f"statistics = {json.dumps(NAMES)}")
GLOBAL = 'guarantee = "global"\nbounds = { outcome = [1000.0, 900000.0], weight = [0.01, 900.0] }'
BOUNDS = BoundsSpec(outcome=(0.0, 10_000.0), weight=(1e-3, 100.0))
TABLES = [TableSpec(by=("field",), statistics=NAMES)]


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("quantiles") / "run", ASKED, pages=True)


def test_a_release_has_them_and_verification_makes_them_again(released):
    public = released / "release" / "public"
    verify_release(public, files_only=True)
    tables = pl.read_csv(public / "tables.csv").filter(pl.col("table") == "money")
    assert tables["statistic"].unique(maintain_order=True).to_list() == NAMES
    assert (tables["se"] > 0).any()
    manifest = json.loads((public / "manifest.json").read_text())
    assert manifest["tables"][1]["statistics"] == NAMES
    page = (public / "report.html").read_text("utf-8")
    for heading in ("Median salary", "Quantile 0.9 of salary", "Share with salary above 25,000"):
        assert heading in page
    assert "svyquantile" in page or "svymean" in page


def test_synthetic_files_are_combined_like_means(released):
    """Estimates are averaged; T = ū + b/m, and the interval is symmetric."""
    paths = [released / "release" / "public" / f"microdata-{number}.csv" for number in (1, 2)]
    roles = {"outcome": "salary", "public": ["region", "sex"], "strata": "region"}
    read = [svysynth.read_synthetic([path], **roles, rules="population") for path in paths]
    single = [one.tabulate("sex", NAMES) for one in read]
    both = svysynth.read_synthetic(paths, **roles, rules="population").tabulate("sex", NAMES)
    estimates, ses = (np.stack([one[name].to_numpy() for one in single]) for name in ("estimate", "se"))
    expected = combine_estimates(estimates, ses**2, 0.95)
    for name in ("estimate", "se", "lower", "upper"):
        np.testing.assert_allclose(both[name].to_numpy(), getattr(expected, name), rtol=1e-12)
    np.testing.assert_allclose((both["lower"] + both["upper"]).to_numpy(), 2 * both["estimate"].to_numpy())


def test_what_has_no_standard_error_has_no_degrees_of_freedom_either():
    """As an empty field of tables.csv, not as a NaN."""
    frame = pl.DataFrame({"y": np.arange(1.0, 9), "w": np.ones(8), "a": ["x"] * 8})
    few = svysynth.read_survey(frame, outcome="y", weight="w", public="a")
    tables = [svysynth.tabulate(few, [], "quantile(0.1)").with_columns(pl.col("estimate") + more) for more in (0, 1)]
    row = combine(tables, svysynth.EstimationSpec()).row(0, named=True)
    assert row["estimate"] == 1.5
    assert [row[name] for name in ("se", "df", "lower", "upper", "cv", "reliability")] == [None] * 6


def test_quantiles_of_the_population_model_weigh_cells_and_not_records():
    """Two cells of two records; one has nine tenths of the population, whatever the weights within it."""
    frame = pl.DataFrame(
        {
            "id": [1, 2, 3, 4],
            "y": [1.0, 2.0, 8.0, 9.0],
            "a": ["p", "p", "q", "q"],
            "weight": [80.0, 10.0, 5.0, 5.0],
            "weight_unsmoothed": [80.0, 10.0, 5.0, 5.0],
        }
    )
    given = {"outcome": "y", "public": "a"}
    estimates = [
        svysynth.read_synthetic([frame], **given, rules=rules).tabulate([], ["quantile(0.7)", "share(< 1.5)"])[
            "estimate"
        ]
        for rules in ("weighted", "population")
    ]
    assert estimates[0].to_list() == pytest.approx([1.0, 0.8])
    assert estimates[1].to_list() == pytest.approx([2.0, 0.45])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('mechanism = "fbp"', 'mechanism = "laplace"', "'laplace' (global) cannot give 'median'"),
        ('mechanism = "fbp"', 'mechanism = "fbs"', "'fbs' (global) cannot give 'median'"),
    ],
)
def test_sums_are_refused_before_the_charge(tmp_path, old, new, words):
    text = ASKED.replace(old, new).replace('guarantee = "asymptotic"', GLOBAL).replace("correction = false\n", "")
    text = text.replace("datasets = 2\n", "" if "laplace" in new else "datasets = 2\n")
    text = text.replace("draws = 400\n", "")
    with pytest.raises(SurveyError) as refused:
        make_release(tmp_path / "run", text)
    assert words in str(refused.value)
    assert "table 'money'" in refused.value.place
    assert "mechanism = 'margins'" in refused.value.remedy
    assert "read_synthetic" in refused.value.remedy
    assert show(tmp_path / "run" / "ledger.sqlite")[0].spent == 0
    (finding,) = (one for one in find_public(parse_spec(text)) if "cannot give" in one.found)
    assert finding.stops


def test_so_are_tables_in_python_and_the_frontier():
    survey = draw_sample(make_population(Streams.seeded(1)), Streams.seeded(2))
    with pytest.raises(SurveyError, match="noise on tables cannot give 'median'"):
        additive_tables(survey, TABLES, math.inf, BOUNDS)
    with pytest.raises(SurveyError, match="cannot give 'median'"):
        laplace_tables(survey, TABLES, 5.0, Streams.seeded(1))
    with pytest.raises(SurveyError, match="cannot give 'median'"):
        FromPublic.tabulate_all(None, TABLES)
    refuse_unsupported(parse_spec(ASKED), ["fbs", "fbp"])
    with pytest.raises(SurveyError, match=r"'laplace' \(global\) cannot give 'median'"):
        refuse_unsupported(parse_spec(ASKED), ["fbs", "laplace"])


def one_cell(outcome, weight):
    frame = pl.DataFrame({"salary": outcome, "weight": weight, "field": ["x"] * len(outcome)})
    return svysynth.read_survey(frame, outcome="salary", weight="weight", public="field")


def misfit_of(survey):
    tables = [TableSpec(by=("field",), statistics=("mean", *NAMES))]
    direct = svysynth.tabulate_all(survey, tables)
    return measure_misfit(survey, make_records(survey), tables, direct)


def test_the_model_implies_the_quantiles_of_its_distribution():
    """In one cell the weighted t is normal with the mean m + g·s² and the variance s²."""
    generator = np.random.default_rng(3)
    t = 10 + 0.7 * generator.standard_normal(4000)
    survey = one_cell(np.exp(t), np.exp(-0.4 * t + 0.3 * generator.standard_normal(4000)))
    records = make_records(survey)
    statistics = plain_statistics(records, np.ones(len(t)))
    covariance = np.asarray(statistics.scatter) / len(t)
    centre = float(np.asarray(records.x @ np.asarray(statistics.coefficients))[0, 0]) + covariance[0, 1]
    found = misfit_of(survey)
    implied = dict(found.tables.filter(field="All").select("statistic", "model").rows())
    assert implied["median"] == pytest.approx(math.exp(centre), rel=0.004)
    assert implied["quantile(0.9)"] == pytest.approx(math.exp(centre + 1.2815516 * covariance[0, 0] ** 0.5), rel=0.01)
    share = 0.5 * math.erfc((math.log(25000) - centre) / (2 * covariance[0, 0]) ** 0.5)
    assert implied["share(> 25000)"] == pytest.approx(share, abs=0.003)
    assert implied["mean"] == pytest.approx(math.exp(centre + covariance[0, 0] / 2), rel=1e-9)
    assert not [finding for finding in judge_misfit(found, survey) if finding.stops]


def test_a_median_far_from_the_model_s_stops_the_release():
    generator = np.random.default_rng(4)
    t = np.where(generator.random(4000) < 0.7, 9.0, 12.0) + 0.1 * generator.standard_normal(4000)
    survey = one_cell(np.exp(t), generator.uniform(1, 3, 4000))
    found = misfit_of(survey)
    assert found.tables.filter(statistic="median", field="All")["off"].abs()[0] > 5
    assert any("medians" in finding.found and finding.stops for finding in judge_misfit(found, survey))


def test_the_verdict_names_them():
    direct = svysynth.tabulate(one_cell(np.arange(1.0, 400), np.ones(399)), "field", ["median", "share(> 100)"])
    moved = direct.with_columns(pl.col("estimate", "lower", "upper") * 3)
    text = "\n".join(judge_release(beside(moved, direct), [], [], None).lines())
    assert "direct medians lie outside" in text
    assert "direct figures of share(> 100) lie outside" in text
    assert "The median of the whole file is far from the direct estimate" in text
