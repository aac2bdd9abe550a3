"""Domains and replicate weights of the file on disk: the same tables, to the last bit, as from memory."""

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
STATISTICS = ("count", "mean", "total", "proportion")
OF_ALL, PRIVATE, PUBLIC = "age >= 30 and income > 500", "w > 1.5 or age < 20", "region <> 'b' and age_group = 'old'"
TABLES = [
    TableSpec(by=("region", "sex"), statistics=STATISTICS),
    TableSpec(by=("sex",), statistics=STATISTICS, domain=PRIVATE),
    TableSpec(by=("region",), statistics=STATISTICS, domain=PUBLIC),
]
REPLICATES = 12
AGES = {str(age): "young" if age < 40 else "old" for age in range(15, 80)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    generator = np.random.default_rng(4)
    weight = np.exp(0.3 * generator.standard_normal(RECORDS))
    columns = {
        "region": generator.choice(["a", "b", "c"], RECORDS),
        "sex": generator.integers(1, 3, RECORDS),
        "age": generator.integers(15, 80, RECORDS),
        "area": generator.integers(0, 5, RECORDS),
        "income": 1000 * np.exp(0.5 * generator.standard_normal(RECORDS)),
        "w": weight,
    }
    factors = generator.choice([0.5, 1.5], (REPLICATES, RECORDS))
    columns |= {f"r{number}": weight * factors[number - 1] for number in range(1, REPLICATES + 1)}
    path = tmp_path_factory.mktemp("data") / "people.parquet"
    pl.DataFrame(columns).write_parquet(path, row_group_size=30_000)
    return path


def spec_of(path, replicates=False, **more):
    survey = {
        "data": str(path),
        "outcome": "income",
        "weight": "w",
        "public": ["region", "sex", "age_group"],
        "columns": {"age_group": {"from": "age", "recode": AGES}},
        "strata": "area",
    }
    if replicates:
        survey["replicates"] = {"weights": f"r1-r{REPLICATES}", "method": "bootstrap"}
    return validate_spec({"survey": survey | more}).survey


DOMAINS = {"domain": OF_ALL, "domains": [PRIVATE, PUBLIC]}
DESIGNS = {
    "strata": DOMAINS,
    "clusters": DOMAINS | {"cluster": "age", "strata": None, "domain": "region <> 'a' or income > 900"},
    "replicates": DOMAINS | {"replicates": True},
    "replicates, no domain": {"replicates": True},
}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("engine_of", [LOCAL, Local(2, parts=3)], ids=["parts of a fixed size", "three parts"])
def test_tables_from_disk_are_those_from_memory(data, tmp_path, design, engine_of):
    spec = spec_of(data, **DESIGNS[design])
    tables = TABLES if spec.domains else TABLES[:1]
    memory = survey_from_file(spec)
    expected, tolerance = tabulate_all(memory, tables), 1e-10 if spec.cluster else 0.0
    (tmp_path / "read").mkdir()
    (tmp_path / "stored").mkdir()
    stored = store_survey(memory, tmp_path / "stored", engine_of)
    for survey in (read_large(spec, tmp_path / "read", engine_of), stored):
        same(tabulate_all(survey, tables), expected, tolerance)
        assert overview(survey) == overview(memory)
        same(tabulate_all(survey.in_memory(), tables), expected, tolerance)
        assert f"domain: {PUBLIC}" not in survey.schema


def test_a_worker_in_another_process_gives_the_same_tables(data, tmp_path):
    spec = spec_of(data, **DESIGNS["replicates"])
    expected = tabulate_all(survey_from_file(spec), TABLES)
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=1, **HERE) as client:
        same(tabulate_all(read_large(spec, tmp_path, Dask(client)), TABLES), expected)


def test_a_domain_without_records_is_refused_from_disk_too(data, tmp_path):
    for domain, words in (
        ("income > 1e9", "has no record inside"),
        ("age_group = 'ancient'", "has no record inside"),
        ("incom > 1", "is not in the data"),
        ("region > 3", "compares column 'region', which is text, with a number"),
    ):
        with pytest.raises(SurveyError, match=words):
            read_large(spec_of(data, domain=domain), tmp_path, LOCAL)


def test_commands_take_domains_and_replicate_weights_from_disk(data, tmp_path, monkeypatch):
    text = f"""
[survey]
data = "{data}"
outcome = "income"
weight = "w"
public = ["region", "sex"]
domain = "age >= 30"
replicates = {{ weights = "r1-r{REPLICATES}", method = "bootstrap" }}
[[tables]]
by = "region"
domain = "income > 700"
"""
    assert_the_command_gives_the_same(text, tmp_path, monkeypatch)
