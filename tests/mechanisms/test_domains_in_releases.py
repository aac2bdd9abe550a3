"""Releases with tables of a domain: every mechanism, from the refusal to the public folder."""

import json
import math
import re

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import places
import svysynth
from quick_release import SPEC, make_release
from signing import sign
from svysynth import Streams, SurveyError, TableSpec
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.mechanisms.noise import StudyNoise
from svysynth.mechanisms.noisy_sums.implied_tables import CellDraws, cell_figures, tables_of_draws
from svysynth.mechanisms.noisy_sums.measuring.measurement import NoisySizes
from svysynth.mechanisms.noisy_sums.measuring.public_facts import PublicFacts, facts_of
from svysynth.mechanisms.noisy_sums.measuring.sizes import declared_groups, facts_of_noisy
from svysynth.mechanisms.noisy_sums.mechanism import measure_survey
from svysynth.mechanisms.noisy_sums.posterior.fitting import fit_measurement, tables_of
from svysynth.mechanisms.noisy_tables.tables import additive_tables
from svysynth.mechanisms.paper_comparison.tables import laplace_tables
from svysynth.models.fbs import FBS
from svysynth.privacy.ledger import show
from svysynth.publishing.verification import verify_release
from svysynth.survey.domains import PublicDomain
from svysynth.survey.survey import read_survey

STATISTICS = ("count", "mean", "total", "proportion")
SEED = Streams.seeded(5)
WIDE = BoundsSpec(outcome=(0.0, 10_000.0), weight=(1e-3, 100.0))
ROLES = {"outcome": "y", "weight": "w", "strata": "stratum", "public": ["a", "b", "stratum"]}
OF_ALL, OF_TABLE = "a <> 'a3'", "b = 'b1' or a = 'a2'"
TABLES = [
    TableSpec(by=("stratum", "a"), statistics=STATISTICS),
    TableSpec(by=("b", "stratum"), statistics=STATISTICS, domain=OF_TABLE),
]


def golden(**named):
    return read_survey(places.GOLDEN / "survey" / "stratified.csv", transform="identity", **ROLES, **named)


# --- what a domain is ---


def test_a_condition_on_public_columns_is_looked_up_by_level():
    frame = pl.DataFrame({"y": [1.0, 2, 3, 4], "w": [1.0] * 4, "age": [25, 30, 40, 25], "sex": ["f", "m", "f", "m"]})
    survey = read_survey(
        frame, outcome="y", weight="w", public=["age", "sex"], domain="age >= 30 and sex = 'f'", domains=["y > 1"]
    )
    ((_, found),) = survey.domains.items()
    assert found.columns == ("age", "sex")
    assert found.inside.tolist() == [[False, False], [True, False], [True, False]]
    assert svysynth.tabulate(survey, [], "count")["n"].to_list() == [1]
    assert svysynth.tabulate(survey, [], "count", domain="y > 1")["n"].to_list() == [1]


@pytest.mark.parametrize("kind", [pl.Int8, pl.Float32, pl.String, pl.Categorical, pl.Enum(["1", "2", "10"])])
def test_codes_are_compared_as_the_file_has_them(kind):
    codes = pl.Series("g", [1, 2, 10, 2]).cast(pl.String)
    codes = codes.cast(pl.Float64).cast(kind) if kind in (pl.Int8, pl.Float32) else codes.cast(kind)
    frame = pl.DataFrame({"y": [1.0, 2, 3, 4], "w": [1.0] * 4, "g": codes})
    condition = "g = 2 or g > 9" if kind in (pl.Int8, pl.Float32) else "g = '2' or g = '10'"
    roles = {"outcome": "y", "weight": "w", "public": ["g"], "labels": {"g": {"1": "one", "2": "two", "10": "ten"}}}
    survey = read_survey(frame, domain=condition, **roles)
    assert svysynth.tabulate(survey, "g", "count")["n"].to_list() == [3, 0, 2, 1]


def test_a_condition_sees_the_columns_of_the_file_or_a_public_column_with_a_name_of_its_own():
    frame = pl.DataFrame({"y": [1.0, 2, 3, 4], "w": [1.0] * 4, "age": [20, 30, 70, None], "sex": [1, 2, 1, 2]})
    columns = {
        "age_group": {"from": "age", "bands": [25, 65], "missing_level": "unknown"},
        "gender": {"from": "sex", "recode": {"1": "men", "2": "women"}},
        "code": {"from": "sex"},
    }
    roles = {"outcome": "y", "weight": "w", "public": ["age_group", "gender", "code"], "columns": columns}
    conditions = ["age_group <> 'under 25'", "gender = 'women'", "code > 1", "sex > 1", "age > 25"]
    survey = read_survey(frame, **roles, domains=conditions)
    assert [one.columns for one in survey.domains.values()] == [("age_group",), ("gender",), ("code",), ("code",)]
    assert [svysynth.tabulate(survey, [], "count", domain=one)["n"][0] for one in conditions] == [3, 2, 2, 2, 2]


def test_a_level_of_missing_answers_is_missing_for_the_condition():
    frame = pl.DataFrame({"y": [1.0, 2, 3], "w": [1.0] * 3, "g": [1, 2, None]})
    roles = {"outcome": "y", "weight": "w", "public": ["g"], "columns": {"g": {"missing_level": "none"}}}
    survey = read_survey(frame, **roles, domains=["g is null", "g <> 1"])
    assert [one.inside.tolist() for one in survey.domains.values()] == [[False, False, True], [False, True, False]]
    assert [svysynth.tabulate(survey, [], "count", domain=one)["n"][0] for one in ("g is null", "g <> 1")] == [1, 1]


def test_a_union_of_levels_comes_back_from_its_parts():
    generator = np.random.default_rng(1)
    labels = {"a": ("x", "y", "z"), "b": ("1", "2"), "c": ("p", "q", "r", "s")}
    for share in (0.1, 0.5, 0.9, 1.0):
        domain = PublicDomain(("a", "b", "c"), generator.random((3, 2, 4)) < share)
        again = PublicDomain.of_parts(domain.columns, domain.parts(labels), labels)
        assert (again.inside == domain.inside).all()
    assert PublicDomain(("a", "b"), np.ones((3, 2), bool)).parts(labels) == [{}]
    one = PublicDomain(("b", "a"), np.array([[True, False, True], [False, False, False]]))
    assert one.parts(labels) == [{"b": ("1",), "a": ("x", "z")}]
    with pytest.raises(ValueError, match="w"):
        PublicDomain.of_parts(("a",), [{"a": ("w",)}], labels)


def test_a_domain_of_declared_levels_without_records_is_a_table_of_zeros_and_no_error():
    """Where whole records are protected, an error would tell that nobody is inside."""
    frame = pl.DataFrame({"y": [1.0, 2, 3], "w": [1.0] * 3, "g": [1, 2, 9], "s": ["a", "b", "a"]})
    roles = {"outcome": "y", "weight": "w", "public": ["g", "s"], "other": {"g": "1"}}
    levels = {"g": ["1", "2", "3"], "s": ["a", "b"]}
    survey = read_survey(frame, **roles, levels=levels, domain="g = 3", domains=["g > 2", "g < 2", "s = 'a'"])
    for domain in (None, "g > 2", "s = 'a'"):
        found = svysynth.tabulate(survey, "s", STATISTICS, domain=domain)
        assert found["n"].to_list() == [0] * 12
        assert found["estimate"].to_list() == [0.0] * 3 + [None] * 3 + [0.0] * 3 + [None] * 3
    with pytest.raises(SurveyError, match="no record that is inside both its domain"):
        svysynth.tabulate(survey, "s", domain="g < 2")  # no level is inside both
    with pytest.raises(SurveyError, match="has no record inside"):
        read_survey(frame, **roles, levels=levels, domain="g = 4")
    facts = facts_of_noisy(declared_groups(survey), NoisySizes(np.array([5, 4, 3, 0, 0, 0]), 1e-9))
    draws = CellDraws(*(np.zeros((3, 6)) for _ in range(4)), *np.full((3, 3), 0.1), size=np.zeros((3, 6)))
    cells = cell_figures(draws, facts.size, 50.0, "identity", (0.0, 10.0))
    assert len(tables_of_draws(cells, facts, [TableSpec(by=("s",), statistics=STATISTICS)], EstimationSpec())) == 12


# --- additive noise ---


def test_noisy_tables_without_noise_are_the_direct_ones():
    survey = golden(domain=OF_ALL, domains=[OF_TABLE])
    found = additive_tables(survey, TABLES, math.inf, WIDE, estimation=EstimationSpec(lonely="adjust")).tables
    direct = svysynth.tabulate_all(survey, TABLES, EstimationSpec(lonely="adjust"))
    assert found["table"].unique().sort().to_list() == [
        f"b by stratum ({OF_TABLE}) ({OF_ALL})",
        f"stratum by a ({OF_ALL})",
    ]
    assert found["n"].to_list() == direct["n"].to_list()
    for name in ("estimate", "se", "df"):
        one, other = (tables.filter(pl.col("n") != 1)[name].to_numpy() for tables in (found, direct))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * (name == "se"))  # sums are of whole steps


def test_noise_is_on_the_sums_inside_and_adds_up():
    """Of two tables, one of a domain and one of all records, the parts agree; n is exact."""
    survey = golden(domains=["b = 'b1'"])
    tables = [
        TableSpec(by="stratum", statistics=("count", "mean")),
        TableSpec(by=("stratum", "b"), statistics=("count",)),
    ]
    tables.append(TableSpec(by="stratum", statistics=("count", "proportion"), domain="b = 'b1'"))
    made = additive_tables(
        survey, tables, 2.0, WIDE, noise=StudyNoise(SEED), estimation=EstimationSpec(lonely="adjust")
    )
    count = made.tables.filter(pl.col("statistic") == "count")
    inside, rows = (count.filter(pl.col("table") == name) for name in ("stratum (b = 'b1')", "stratum by b"))
    both = inside.join(rows.filter(b="b1"), on="stratum", suffix="_row")
    assert both.height == inside.height
    for name in ("estimate", "se", "n"):
        np.testing.assert_allclose(both[name].to_numpy(), both[f"{name}_row"].to_numpy(), rtol=1e-9)
    share = made.tables.filter(statistic="proportion", stratum="All")
    assert share["estimate"].to_list() == [1.0]
    assert sum(use.epsilon for use in made.uses) == 2


def test_the_papers_noise_without_noise_gives_the_direct_estimates():
    survey = golden(domain=OF_ALL, domains=[OF_TABLE])
    tables = [table.model_copy(update={"statistics": ("count", "mean", "total")}) for table in TABLES]
    settings = EstimationSpec(lonely="certainty")
    found = laplace_tables(survey, tables, math.inf, SEED, estimation=settings).tables
    direct = svysynth.tabulate_all(survey, tables, settings)
    assert found["table"].to_list() == direct["table"].to_list()
    assert_frame_equal(found.select("estimate", "n"), direct.select("estimate", "n"), rel_tol=1e-12)
    ratio = (found["se"] / direct["se"]).drop_nans().drop_nulls()
    assert 0.3 < ratio.filter(ratio > 0).median() < 3


# --- noisy sums ---


@pytest.fixture(scope="module")
def small():
    """A survey whose strata are inside or outside the domain as a whole, and what is drawn from its noisy sums."""
    generator = np.random.default_rng(8)
    size = 600
    area = generator.choice(["n", "s", "t"], size)
    frame = pl.DataFrame(
        {
            "area": area,
            "sex": generator.choice(["f", "m"], size),
            "y": np.exp(10 + 0.4 * generator.standard_normal(size) + 0.2 * (area == "s")),
            "w": np.exp(4 + 0.4 * generator.standard_normal(size)),
        }
    )
    roles = {"outcome": "y", "weight": "w", "public": ["area", "sex"], "strata": "area", "population_total": 40_000}
    survey = read_survey(frame, **roles, domains=["area <> 't'", "sex = 'f'"])
    bounds = BoundsSpec(outcome=(1000.0, 500_000.0), weight=(1.0, 1000.0))
    tables = [TableSpec(by=("area", "sex"), statistics=STATISTICS)]
    measured = measure_survey(survey, "answers", tables, bounds, "log", 6.0, StudyNoise(SEED))
    fitted = fit_measurement(*measured, FBS(), None, 400, SEED, rounds=4)
    return survey, measured, fitted


def test_a_domain_of_noisy_sums_is_the_row_of_that_level(small):
    _, measured, fitted = small
    three = ("count", "mean", "total")
    inside = TableSpec(by=("area",), statistics=three, domain="sex = 'f'")
    found = tables_of(
        fitted.drawn, *measured, [inside, TableSpec(by=("area", "sex"), statistics=three)], EstimationSpec()
    )
    one, rows = (found.filter(table=name) for name in ("area (sex = 'f')", "area by sex"))
    both = one.join(rows.filter(sex="f"), on=["statistic", "area"], suffix="_row")
    assert both.height == one.height == 12
    for name in ("estimate", "se", "n"):
        np.testing.assert_allclose(both[name].to_numpy(), both[f"{name}_row"].to_numpy(), rtol=1e-12)


def test_proportions_in_whole_strata_are_those_of_a_file_of_these_strata(small):
    """With the same cells, weights and outcomes; the other strata have no part in them."""
    survey, (measurement, facts), fitted = small
    drawn, kept = fitted.drawn, facts.codes[:, 0] < 2
    part = PublicFacts(facts.labels, facts.codes[kept], facts.cell[kept], facts.stratum[kept], facts.count[kept])
    own = {
        name: value[:, kept] if value.ndim == 2 else value for name, value in vars(drawn).items() if value is not None
    }
    tables = [TableSpec(by=("sex",), statistics=("proportion",), domain="area <> 't'")]
    settings = measurement.transform, measurement.bounds.outcome
    every = tables_of_draws(cell_figures(drawn, facts.size, 1.0, *settings), facts, tables, EstimationSpec())
    alone = cell_figures(CellDraws(**own), part.size, 1.0, *settings)
    found = tables_of_draws(alone, part, [TableSpec(by=("sex",), statistics=("proportion",))], EstimationSpec())
    assert every["estimate"][0] == pytest.approx(1.0)
    for name in ("estimate", "se"):
        np.testing.assert_allclose(every[name].to_numpy(), found[name].to_numpy(), rtol=1e-9, atol=1e-12)
    direct = svysynth.tabulate(survey, "sex", "proportion", domain="area <> 't'")
    assert (np.abs(direct["estimate"] - every["estimate"]) < 0.1).all()


def test_counts_from_public_weights_are_exact_in_a_domain(small):
    survey, _, fitted = small
    frame = survey.in_memory().frame.select("area", "sex", "y", "w")
    roles = {"outcome": "y", "weight": "w", "public": ["area", "sex"], "strata": "area", "weight_public": True}
    public = read_survey(frame, **roles, domain="sex = 'f' or area = 'n'")
    facts = facts_of(public).by_group()
    groups = cell_figures(fitted.drawn, facts.size, 1.0, "log", (1000.0, 500_000.0))
    tables = [TableSpec(by=("area", "sex"), statistics=("count", "proportion"))]
    found = tables_of_draws(groups, facts, tables, EstimationSpec())
    direct = svysynth.tabulate_all(public, tables)
    assert_frame_equal(
        found.drop("cv", "reliability"), direct.drop("cv", "reliability"), rel_tol=1e-9, check_dtypes=False
    )


# --- whole releases ---

QUICK = SPEC.replace(
    '[[tables]]\nby = ["region", "sex"]', '[[tables]]\nby = ["region", "sex"]\ndomain = "region <> \'east\'"'
)


def quick(text, domain):
    return text.replace("[privacy]", f'domain = "{domain}"\n\n[privacy]', 1)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    text = quick(QUICK, "sex = 'F' or region = 'north'")
    return make_release(tmp_path_factory.mktemp("domain") / "run", text, pages=True)


def test_a_release_states_its_domains_and_its_tables_can_be_made_again(released):
    public = released / "release" / "public"
    manifest = json.loads((public / "manifest.json").read_text())
    assert manifest["survey"]["domain"] == "sex = 'F' or region = 'north'"
    assert {one["condition"] for one in manifest["survey"]["domains"]} == {
        "sex = 'F' or region = 'north'",
        "region <> 'east'",
    }
    found = next(one for one in manifest["survey"]["domains"] if one["condition"] == "region <> 'east'")
    assert found == {"condition": "region <> 'east'", "columns": ["region"], "parts": [{"region": ["north", "south"]}]}
    assert "tables, made again" in " ".join(verify_release(released / "release", released / "ledger.sqlite").checked)
    tables = pl.read_csv(public / "tables.csv", infer_schema_length=None)
    assert "money (sex = 'F' or region = 'north')" in tables["table"].to_list()
    assert tables.filter(pl.col("n") > 0)["n"].max() < 120
    assert "sex = &#39;F&#39; or region = &#39;north&#39;" in (public / "report.html").read_text()


def test_the_synthetic_files_hold_all_records_and_give_the_tables(released):
    public = released / "release" / "public"
    files = sorted(public.glob("microdata-*.parquet"))
    assert len(pl.read_parquet(files[0])) == 120
    assert "domain" not in " ".join(pl.read_parquet(files[0]).columns)
    roles = {"outcome": "salary", "public": ["region", "sex"], "strata": "region", "rules": "population"}
    synthetic = svysynth.read_synthetic(
        files, **roles, domain="sex = 'F' or region = 'north'", domains=["region <> 'east'"]
    )
    found = synthetic.tabulate(["region", "sex"], domain="region <> 'east'")
    tables = pl.read_csv(public / "tables.csv", infer_schema_length=None).filter(table=found["table"][0])
    both = found.join(tables, on=["statistic", "region", "sex"], suffix="_released")
    assert both.height == found.height
    for name in ("estimate", "se"):
        np.testing.assert_allclose(
            both[name].to_numpy().astype(float), both[f"{name}_released"].to_numpy().astype(float), rtol=1e-8
        )


@pytest.mark.parametrize(
    "change",
    [
        {"parts": [{"region": ["west"]}]},
        {"parts": [{"sex": ["F"]}]},
        {"columns": ["sex"], "parts": [{"sex": ["F"]}]},
        {"condition": "region = 'north'"},
        {"condition": "block <> 'b1'", "columns": ["block"], "parts": []},
        {"parts": [{"region": ["north"]}]},
    ],
)
def test_a_manifest_whose_domains_contradict_it_is_refused(released, tmp_path, change):
    public = tmp_path / "public"
    public.mkdir()
    for path in (released / "release" / "public").iterdir():
        (public / path.name).write_bytes(path.read_bytes())
    verify_release(public, files_only=True)
    domains = json.loads((public / "manifest.json").read_text())["survey"]["domains"]
    domains = [one | change if one["condition"] == "region <> 'east'" else one for one in domains]
    sign(public, survey={"domains": domains})
    with pytest.raises(SurveyError, match="do not publish it"):
        verify_release(public, files_only=True)


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (
            "salary > 20000",
            "names the confidential column 'salary'. Its tables would reveal something",
        ),
        ("wt > 20", "names the confidential column 'wt'"),
        ("block = 'b1'", "names a column that is not public: 'block'"),
    ],
)
def test_a_domain_that_is_not_public_is_refused_before_the_charge(tmp_path, domain, words):
    with pytest.raises(SurveyError, match=re.escape(words)) as refused:
        make_release(tmp_path / "run", quick(SPEC, domain))
    assert "survey.public" in refused.value.remedy
    assert show(tmp_path / "run" / "ledger.sqlite")[0].spent == 0
