"""The contract of mechanisms: every member of the list keeps it, and a new one needs a class and a line."""

import ast
import io
import json
import re
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

import svysynth
from neighbours import ANSWERS, SPEC, TRIED, make_house
from no_evidence import NoEvidence
from repeatable import repeat
from signing import sign
from svysynth.cli.check import render_overview
from svysynth.core import registry
from svysynth.core.engine import Local
from svysynth.core.errors import SurveyError
from svysynth.core.registry import MECHANISMS, ListedMechanism, find_mechanism, mechanism_names, promises_of
from svysynth.core.spec.whole import load_spec
from svysynth.core.streams import Streams
from svysynth.estimation.combining import Synthetic
from svysynth.evaluation.frontier import frontier
from svysynth.mechanisms.base import (
    TABLES_AND_REPORT,
    Made,
    Mechanism,
    Remade,
    Roles,
    find_public,
    load_mechanism,
    mechanism_of,
)
from svysynth.mechanisms.findings import Finding
from svysynth.mechanisms.suitability import Examined
from svysynth.privacy.guarantee import additive
from svysynth.privacy.ledger import open_budget, show
from svysynth.privacy.manifest import Manifest, PrivacyFacts, SurveyFacts
from svysynth.privacy.release import NotCharged, microdata
from svysynth.publishing.report.internal import render_section
from svysynth.publishing.verification import verify_release
from svysynth.survey.on_disk import store_survey
from svysynth.survey.overview import overview
from svysynth.survey.survey import survey_from_file

PACKAGE = Path(svysynth.__file__).parent
EVERY = [(name, member.promise) for member in MECHANISMS for name in member.names]
RELEASED = [(name, promise) for name, promise in EVERY if promise != "none"]


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """The folder of a survey that any mechanism could release."""
    return make_house(tmp_path_factory.mktemp("mechanisms") / "house", "laplace", ANSWERS[0]).parent


def spec_of(house, name, promise):
    path = house / f"{name}-{promise}.toml"
    path.write_text(SPEC.format(mechanism=name, guarantee=promise))
    return load_spec(path)


def facts_of(spec, microdata):
    """What a manifest would state."""
    own = spec.survey.model_dump(include={*SurveyFacts.model_fields} - {"levels"})
    survey = SurveyFacts(**own, levels={}, records=64)
    privacy = spec.privacy
    return survey, PrivacyFacts(
        **privacy.model_dump(include={*PrivacyFacts.model_fields} - {"datasets", "bounds", "constants"}),
        datasets=privacy.datasets if microdata else 0,
        bounds=privacy.bounds,
        constants=None,
    )


# --- the list ---


def test_a_mechanism_and_a_promise_name_one_member():
    assert len(set(EVERY)) == len(EVERY)
    assert set(mechanism_names()) == {name for name, _ in EVERY}
    assert set(mechanism_names(released=True)) == {name for name, _ in RELEASED}
    assert find_mechanism("fbs", "none") is None
    assert promises_of("nothing") == ()


def test_reading_a_spec_loads_no_member():
    """The list is read before JAX is there."""
    tree = ast.parse((PACKAGE / "core/registry.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "typing"}


def test_nothing_compares_the_names_of_mechanisms():
    """Names stand in the members themselves, in the models, in the spec's default, and in the paper's studies."""
    compared = re.compile(r"""(==|!=|\bin) \(?["'](fbs|fbp|laplace|laplace-paper)["']""")
    for path in PACKAGE.rglob("*.py"):
        room = str(path.relative_to(PACKAGE))
        if not room.startswith(("mechanisms/", "models/", "core/registry.py", "evaluation/paper/")):
            assert not compared.search(path.read_text(encoding="utf-8")), room


# --- every member ---


@pytest.mark.parametrize(("name", "promise"), EVERY)
def test_it_says_what_it_is(house, name, promise):
    spec, member = spec_of(house, name, promise), find_mechanism(name, promise)
    mechanism = mechanism_of(spec.privacy)
    assert Mechanism in type(mechanism).__mro__
    for part in (part for part in vars(Mechanism) if not part.startswith("_")):
        assert getattr(type(mechanism), part) is not getattr(Mechanism, part), part
    assert mechanism is load_mechanism(member)
    assert mechanism.title(name)
    assert set(mechanism.stated) <= {"scheme", "draws", "correction", "scales"}
    assert mechanism.reads(spec).data == spec.survey.data
    assert spec.privacy.microdata == member.microdata
    assert all(isinstance(finding, Finding) for finding in mechanism.find_public(spec))
    setting = mechanism.undivided(spec)
    assert setting is None or setting.split(".")[0] in ("survey", "privacy", "estimation")


@pytest.mark.parametrize(("name", "promise"), EVERY)
def test_what_it_promises_follows_from_a_spec_and_again_from_a_manifest(house, name, promise):
    spec, member = spec_of(house, name, promise), find_mechanism(name, promise)
    mechanism = mechanism_of(spec.privacy)
    found = mechanism.guarantee(spec.survey, spec.privacy)
    assert (found.kind, found.mechanism) == (promise, name)
    assert (found.datasets > 0) == member.microdata
    assert (found.confidential, found.public) == (("income", "wt"), ("region", "sex"))
    if promise != "none":
        assert found == mechanism.guarantee(*facts_of(spec, member.microdata))
        assert found.accounting == spec.privacy.accounting
        assert found.charged == spec.privacy.epsilon


@pytest.mark.parametrize(("name", "promise"), EVERY)
def test_without_a_promise_there_is_no_release(house, name, promise):
    stopping = [finding for finding in find_public(spec_of(house, name, promise)) if finding.stops]
    assert bool(stopping) == (promise == "none")


@pytest.mark.parametrize(("name", "promise"), RELEASED)
def test_it_pays_once_for_what_it_promises_and_makes_nothing_unpaid(house, name, promise):
    spec = spec_of(house, name, promise)
    mechanism, paid = mechanism_of(spec.privacy), []
    survey = survey_from_file(mechanism.reads(spec))
    direct = svysynth.tabulate_all(survey, spec.requested_tables)
    mechanism.check(survey, spec)
    examined = mechanism.examine(survey, spec, direct)
    assert isinstance(examined, Examined)
    assert promise != "global" or not any(finding.stops for finding in examined.findings)

    def refused(_):
        raise SurveyError("spec", "the budget", "is spent", "stop")

    with pytest.raises(SurveyError, match="is spent"):
        mechanism.run(survey, spec, refused, Streams.seeded(1), lambda _: None)
    made = mechanism.run(survey, spec, lambda due: paid.append(due) or NotCharged(), Streams.seeded(1), lambda _: None)
    assert paid == [made.guarantee] == [mechanism.guarantee(spec.survey, spec.privacy)]
    assert len(made.synthetic.surveys) == made.guarantee.datasets
    keys = direct.columns[: direct.columns.index("estimate")]
    assert made.tables.select(keys).equals(direct.select(keys))
    rules = mechanism.synthetic((), name, spec.model)
    assert (rules.rules, rules.strata_in_variance) == (made.synthetic.rules, made.synthetic.strata_in_variance)


@pytest.mark.parametrize(("name", "promise"), RELEASED)
def test_what_it_makes_from_disk_is_what_it_makes_in_memory(house, tmp_path, name, promise):
    """Of a mechanism that says it needs no records at once."""
    spec = spec_of(house, name, promise)
    mechanism = mechanism_of(spec.privacy)
    if mechanism.undivided(spec) is not None:
        assert name in ("laplace", "margins")
        return
    small = survey_from_file(mechanism.reads(spec))
    made = []
    for survey in (small, store_survey(small, tmp_path, Local(threads=2, parts=3))):
        direct = svysynth.tabulate_all(survey, spec.requested_tables)
        mechanism.check(survey, spec)
        findings = mechanism.examine(survey, spec, direct).findings
        found = mechanism.run(survey, spec, lambda _: NotCharged(), Streams.seeded(1), lambda _: None)
        files = [microdata(synthetic, 0, len(survey)) for synthetic in found.synthetic.surveys]
        made.append((direct, findings, found.tables, found.attachments, pl.concat(files)))
    for one, other in zip(*made, strict=True):
        assert one.equals(other) if isinstance(one, pl.DataFrame) else one == other


@pytest.mark.parametrize(("name", "promise"), RELEASED)
def test_its_evidence_is_for_the_internal_folder(house, tmp_path, name, promise):
    spec = spec_of(house, name, promise)
    mechanism = mechanism_of(spec.privacy)
    survey = survey_from_file(mechanism.reads(spec))
    made = mechanism.run(survey, spec, lambda _: NotCharged(), Streams.seeded(1), lambda _: None)
    assert isinstance(made.evidence.complaints, tuple)
    assert all(len(row) == 2 for row in made.evidence.summary())
    for section in made.evidence.sections():
        for anchor, heading in section.contents:
            assert f'<section id="{anchor}"' in render_section(section)
            assert heading in render_section(section)
    made.evidence.write(tmp_path)
    assert not {path.name for path in tmp_path.iterdir()} & {"run.json", "verdict.json", "report.html"}


@pytest.mark.parametrize(("name", "promise"), RELEASED)
def test_a_release_has_its_files_and_is_verified(house, tmp_path, monkeypatch, name, promise):
    found = released(spec_of(house, name, promise), tmp_path / "r", monkeypatch)
    mechanism, member = mechanism_of(found.privacy), find_mechanism(name, promise)
    assert set(mechanism.public_files(found)) == set(found.files)
    remade = mechanism.remake(tmp_path / "r/public", found)
    assert remade is not None or not member.microdata
    assert mechanism.further(tmp_path / "r/public", found) is None or promise == "global"
    if remade is not None:
        assert remade.tables.height == pl.read_csv(tmp_path / "r/public/tables.csv").height


def released(spec, folder, monkeypatch):
    """The verified manifest of a release that was paid for."""
    ledger = folder.parent / "ledger.sqlite"
    open_budget(ledger, "people", 100, spec.privacy.accounting)
    placed = spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"ledger": ledger})})
    repeat(monkeypatch, 3)
    svysynth.release(placed, folder)
    assert [state.spent for state in show(ledger)] == [int(1e6 * spec.privacy.epsilon)]
    return verify_release(folder, ledger).manifest


@pytest.mark.parametrize(("name", "promise"), EVERY)
def test_it_can_be_compared_with_others(house, name, promise):
    """The frontier asks the member for its tables."""
    spec = spec_of(house, name, promise)
    survey = survey_from_file(spec.survey)
    found = frontier(survey, spec, [name], [8.0], [2], Streams.seeded(1), repeats=1)
    assert found["mechanism"].unique().to_list() == [name]
    assert (found["datasets"][0] > 0) == (promise == "asymptotic")  # whose tables alone depend on the number of files


# --- a new member: a class and a line ---


class Toy(Mechanism):
    """Measures the tables with noise of its own, publishes the measurement, and makes the tables from that alone."""

    packages = ()
    stated = ()
    modelled = False

    def title(self, name):
        return "Toy: for a test"

    def find_public(self, spec):
        return []

    def undivided(self, spec):
        return "privacy.mechanism"

    def reads(self, spec):
        return spec.survey

    def check(self, survey, spec):
        if len(survey) < 10:
            raise SurveyError("data", "the survey", "is too small", "use more records")

    def examine(self, survey, spec, direct):
        return Examined()

    def guarantee(self, survey, privacy):
        promised = additive(privacy.epsilon, **vars(Roles.of(survey)))
        return promised.model_copy(update={"mechanism": "toy"})

    def run(self, survey, spec, pay, streams, progress):
        guarantee = self.guarantee(spec.survey, spec.privacy)
        paid = pay(guarantee)
        measurement = measure(survey, spec, streams)
        files = {
            "measurement.json": json.dumps({"epsilon": spec.privacy.epsilon}).encode(),
            "draws.parquet": measurement,
        }
        return Made(guarantee, paid, Synthetic(()), tables_of(measurement), NoEvidence(), ("A toy.",), files)

    def synthetic(self, surveys, name, model):
        return Synthetic(())

    def public_files(self, manifest):
        return (*TABLES_AND_REPORT, "measurement.json", "draws.parquet")

    def remake(self, public, manifest):
        return Remade(tables_of((public / "draws.parquet").read_bytes()), "draws", 1)

    def further(self, public, manifest):
        return None

    def tries(self, survey, spec, name, grid, streams, progress):
        for epsilon in grid.epsilons:
            yield epsilon, 0, 0, tables_of(measure(survey, spec, streams))


def measure(survey, spec, streams):
    """The confidential part."""
    tables = svysynth.tabulate_all(survey, spec.requested_tables, spec.estimation)
    noise = streams.generator("toy").laplace(0, 1, tables.height)
    content = io.BytesIO()
    tables.with_columns(pl.col("estimate") + pl.Series(noise)).write_parquet(content)
    return content.getvalue()


def tables_of(measurement):
    """The rest takes the measurement and nothing else."""
    return pl.read_parquet(io.BytesIO(measurement))


@pytest.fixture
def toy(house, monkeypatch):
    """All that it takes to register one."""
    line = ListedMechanism(("toy",), "global", False, "test_mechanisms.Toy")
    monkeypatch.setattr(registry, "MECHANISMS", (*MECHANISMS, line))
    return spec_of(house, "toy", "global")


def test_a_new_mechanism_is_released_and_verified(toy, tmp_path, monkeypatch):
    found = released(toy, tmp_path / "r", monkeypatch)
    assert (found.privacy.mechanism, found.notes, found.model) == ("toy", ("A toy.",), None)
    assert set(found.files) == {*TABLES_AND_REPORT, "measurement.json", "draws.parquet"}
    assert "Toy: for a test" in (tmp_path / "r/public/report.html").read_text(encoding="utf-8")
    checked = verify_release(tmp_path / "r", tmp_path / "ledger.sqlite").checked
    assert any(line.endswith("rows of tables, made again from 1 draws") for line in checked)


def test_tables_that_do_not_follow_from_what_it_published_are_refused(toy, tmp_path, monkeypatch):
    released(toy, tmp_path / "r", monkeypatch)
    path = tmp_path / "r/public/draws.parquet"
    tables_of(path.read_bytes()).with_columns(pl.col("estimate") + 1).write_parquet(path)
    sign(tmp_path / "r/public")
    with pytest.raises(SurveyError, match="do not follow from its draws"):
        verify_release(tmp_path / "r", files_only=True)
    path.unlink()
    sign(tmp_path / "r/public")
    with pytest.raises(SurveyError, match="contradicts itself"):
        verify_release(tmp_path / "r", files_only=True)


def test_a_new_mechanism_is_in_the_frontier_and_in_what_check_shows(toy):
    survey = survey_from_file(toy.survey)
    assert frontier(survey, toy, ["toy", "laplace"], [8.0], [2], Streams.seeded(1), repeats=1).height > 0
    assert find_public(toy) == []
    told = Console(record=True, width=200, file=io.StringIO())
    told.print(render_overview(overview(survey), toy))
    assert "toy, ε = 8 for all tables" in told.export_text()


def test_what_is_not_on_the_list_is_refused(house, toy, tmp_path, monkeypatch):
    released(toy, tmp_path / "r", monkeypatch)
    monkeypatch.setattr(registry, "MECHANISMS", MECHANISMS)
    with pytest.raises(
        SurveyError, match=r"'privacy\.mechanism' must be one of 'fbs', 'fbp', 'margins', 'laplace', 'laplace-paper'"
    ):
        spec_of(house, "toy", "global")
    with pytest.raises(SurveyError, match="does not follow its schema"):
        verify_release(tmp_path / "r", files_only=True)
    with pytest.raises(ValueError, match="mechanism"):
        Manifest.model_validate_json((tmp_path / "r/public/manifest.json").read_text())


def test_the_audits_of_neighbours_cover_every_member():
    """What is released is compared between neighbours, under at least one name of each."""
    covered = {find_mechanism(*pair) for pair in TRIED.values()}
    assert covered == {member for member in MECHANISMS if member.promise != "none"}
