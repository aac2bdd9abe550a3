"""Tables of several answers from disk and from another process: the same, to the last bit, as from memory."""

import numpy as np
import polars as pl
import pytest

from from_disk import assert_the_command_gives_the_same, same
from svysynth import SurveyError, TableSpec
from svysynth.core.engine import BLOCK, HERE, LOCAL, Dask, Local
from svysynth.core.spec.whole import validate_spec
from svysynth.estimation.tables import tabulate_all
from svysynth.survey.large_files import read_large
from svysynth.survey.on_disk import store_survey
from svysynth.survey.overview import overview
from svysynth.survey.survey import survey_from_file

RECORDS = 3 * BLOCK // 2
TABLES = [
    TableSpec(by=("region", "sex")),
    TableSpec(by="region", of="hours", statistics=("mean", "median", "share(> 30)")),
    TableSpec(by="region", of="status"),
    TableSpec(by=("status", "sick", "sex"), within="sex", statistics=("count", "proportion")),
    TableSpec(by="status", of="sick", domain="income > 700"),
    TableSpec(by="region", statistics=("ratio(income, hours)",)),
]
REPLICATES = 6
DESIGNS = {
    "strata": {},
    "clusters": {"cluster": "age", "strata": None},
    "replicates": {"replicates": {"weights": f"r1-r{REPLICATES}", "method": "bootstrap"}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    generator = np.random.default_rng(4)
    weight = np.exp(0.3 * generator.standard_normal(RECORDS))
    hours = generator.integers(-1, 60, RECORDS)
    columns = {
        "region": generator.choice(["a", "b", "c"], RECORDS),
        "sex": generator.integers(1, 3, RECORDS),
        "age": generator.integers(15, 80, RECORDS),
        "area": generator.integers(0, 5, RECORDS),
        "income": 1000 * np.exp(0.5 * generator.standard_normal(RECORDS)),
        "hours": hours,
        "status": generator.choice(["1", "2", "3"], RECORDS),
        "sick": generator.integers(0, 11, RECORDS) % 3,
        "w": weight,
    }
    factors = generator.choice([0.5, 1.5], (REPLICATES, RECORDS))
    columns |= {f"r{number}": weight * factors[number - 1] for number in range(1, REPLICATES + 1)}
    path = tmp_path_factory.mktemp("data") / "people.parquet"
    frame = pl.DataFrame(columns).with_columns(pl.col("sick").replace({2: None}))
    frame.write_parquet(path, row_group_size=30_000)
    return path


def spec_of(path, **more):
    survey = {
        "data": str(path),
        "outcome": "income",
        "weight": "w",
        "public": ["region", "sex"],
        "columns": {
            "hours": {"missing": "-1"},
            "status": {"recode": {"1": "employed", "2": "other", "3": "other"}},
            "sick": {"missing": "NA"},
        },
        "variables": {
            "hours": {"kind": "amount"},
            "status": {"kind": "category"},
            "sick": {"kind": "yes/no", "yes": "1", "no": "0"},
        },
        "strata": "area",
        "domains": ["income > 700"],
    }
    return validate_spec({"survey": survey | more}).survey


@pytest.mark.parametrize("design", DESIGNS)
def test_tables_of_answers_from_disk_are_those_from_memory(data, tmp_path, design):
    spec = spec_of(data, **DESIGNS[design])
    memory = survey_from_file(spec)
    expected, tolerance = tabulate_all(memory, TABLES), 1e-10 if spec.cluster else 0.0
    (tmp_path / "read").mkdir()
    (tmp_path / "stored").mkdir()
    stored = store_survey(memory, tmp_path / "stored", LOCAL)
    for survey in (read_large(spec, tmp_path / "read", Local(2, parts=3)), stored):
        assert survey.variables == memory.variables
        same(tabulate_all(survey, TABLES), expected, tolerance)
        assert overview(survey) == overview(memory)
        same(tabulate_all(survey.in_memory(), TABLES[2:4]), tabulate_all(memory, TABLES[2:4]), tolerance)


def test_a_worker_in_another_process_gives_the_same_tables_of_answers(data, tmp_path):
    spec = spec_of(data)
    expected = tabulate_all(survey_from_file(spec), TABLES)
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=1, **HERE) as client:
        same(tabulate_all(read_large(spec, tmp_path, Dask(client)), TABLES), expected)


def test_a_table_does_not_depend_on_the_other_tables_of_answers(data):
    """What a table without answers has is, to the last bit, what it has in a spec without variables."""
    survey = survey_from_file(spec_of(data))
    plain = survey_from_file(spec_of(data, variables={}, columns={}))
    together = tabulate_all(survey, TABLES).filter(pl.col("table") == "region by sex")
    alone = tabulate_all(plain, TABLES[:1])
    for name in alone.columns:
        assert together[name].equals(alone[name]), name


def test_answers_that_fit_no_declaration_are_refused_from_disk_too(data, tmp_path):
    coded = {"sick": {"missing": "NA"}}
    for variables, columns, words in (
        ({"sick": {"kind": "amount"}}, {}, r"missing.* survey\.columns\.sick\.missing"),
        ({"sick": {"kind": "yes/no", "yes": "1"}}, {}, r"missing.* survey\.columns\.sick\.missing"),
        ({"sick": {"kind": "yes/no", "yes": "1", "no": "7"}}, coded, "not among the codes of 'yes' and 'no'"),
        ({"status": {"kind": "category", "levels": ["1", "2"]}}, {}, "not among those in"),
        ({"sick": {"kind": "category"}}, {}, r"missing.* survey\.columns\.sick\.missing_level"),
    ):
        with pytest.raises(SurveyError, match=words):
            read_large(spec_of(data, variables=variables, columns=columns), tmp_path, LOCAL)


def test_levels_that_are_not_declared_are_those_of_the_whole_file(tmp_path):
    """Each part of the file has codes that the others lack."""
    row = np.arange(RECORDS)
    frame = pl.DataFrame({"y": row % 7 + 1.0, "w": 1.0 + row % 3, "a": row % 2, "c": row // (RECORDS // 11)})
    frame.with_columns(pl.when(pl.col("c") == 2).then(None).otherwise("c").alias("c")).write_parquet(
        tmp_path / "a.parquet"
    )
    settings = {"data": str(tmp_path / "a.parquet"), "outcome": "y", "weight": "w", "public": "a"}
    settings |= {"variables": {"c": {"kind": "category"}}, "columns": {"c": {"missing_level": "none"}}}
    spec = validate_spec({"survey": settings}).survey
    memory, disk = survey_from_file(spec), read_large(spec, tmp_path, Local(2, parts=3))
    assert disk.levels("c") == memory.levels("c") == ("0", "1", *map(str, range(3, 12)), "none")
    tables = [TableSpec(by="a", of="c")]
    same(tabulate_all(disk, tables), tabulate_all(memory, tables))


def test_the_command_takes_answers_from_disk(data, tmp_path, monkeypatch):
    text = f"""
[survey]
data = "{data}"
outcome = "income"
weight = "w"
public = ["region", "sex"]
[survey.variables.status]
kind = "category"
levels = ["1", "2", "3"]
[[tables]]
by = "region"
of = "status"
"""
    assert_the_command_gives_the_same(text, tmp_path, monkeypatch)
