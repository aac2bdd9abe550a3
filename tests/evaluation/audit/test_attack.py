"""The sampled audit: its statistics on mechanisms of known ε, whole releases under attack, and the commands."""

from dataclasses import replace
from itertools import count

import numpy as np
import polars as pl
import pytest
from scipy import stats

from study_of_audits import AUDITED, EPSILONS, SPEC, TIGHT, randomised_response, tight_bound
from svysynth.cli.main import main
from svysynth.core.streams import Streams
from svysynth.evaluation.audit import neighbours as worlds
from svysynth.evaluation.audit.attack import attack, lower_bounds
from svysynth.evaluation.audit.neighbours import RECORDS, audit_sampled, black_box, make_worlds, white_box
from svysynth.mechanisms.noise import StudyNoise, contributions
from svysynth.publishing import public_folder as publish
from svysynth.publishing import release_folder

SURE = 1 - 1e-6
"""Where the noise is the operating system's: a false alarm in a million runs."""
GLOBAL = 'mechanism = "laplace"\nguarantee = "global"'


# --- mechanisms of which ε is known ---


@pytest.mark.parametrize("name", TIGHT)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_attack_finds_most_of_a_tight_epsilon_and_no_more(name, epsilon):
    found = tight_bound(name, epsilon)
    assert 0.8 * epsilon <= found.epsilon <= epsilon


def test_a_bound_is_wrong_as_seldom_as_stated():
    """Of 300 audits of a tight mechanism no more exceed its ε than 5% would with probability 1e-4."""
    generator = np.random.default_rng(3)
    found = [attack(*randomised_response(1.0, 400, generator), ["bit"]).epsilon for _ in range(300)]
    assert np.sum(np.array(found) > 1.0) <= stats.binom.ppf(1 - 1e-4, 300, 0.05)
    assert np.mean(found) > 0.5


def test_the_same_world_twice_shows_nothing():
    """However many statistics the attack may choose from; by chance once in 20, with this seed not."""
    one, other = np.random.default_rng(5).standard_normal((2, 2000, 10))
    assert attack(one, other, [str(number) for number in range(10)]).epsilon == 0.0


def test_the_limits_are_clopper_and_pearson_s():
    for hits, other_hits in ((40, 3), (50, 0), (10, 10)):
        lower = stats.binomtest(hits, 50).proportion_ci(0.9, "exact").low
        upper = stats.binomtest(other_hits, 50).proportion_ci(0.9, "exact").high
        expected = max(np.log(lower / upper), 0)
        assert lower_bounds(np.array(hits), np.array(other_hits), 50, 0.9) == pytest.approx(expected)


def test_a_difference_that_no_single_statistic_shows_is_found():
    generator = np.random.default_rng(6)
    noise = generator.standard_normal((2, 4000, 1))
    one, other = (
        np.hstack([noise[world], noise[world] + 0.02 * (world + generator.random((4000, 1)))]) for world in (0, 1)
    )
    found = attack(one, other, ["first", "second"])
    assert found.statistic == "a linear combination"
    assert found.epsilon > 3


# --- whole releases ---


@pytest.fixture
def quick(monkeypatch):
    """Releases without their HTML pages, which take most of the time; of the public folder nothing else is missing.

    And less noise drawn for the white-box attack on tables.
    """
    monkeypatch.setattr(worlds, "NOISY", 4000)
    monkeypatch.setattr(release_folder, "write_internal", lambda *_, **__: None)
    monkeypatch.setattr(publish, "public_page", lambda *_, **__: "")


def test_worlds_differ_in_one_respondent_and_are_made_of_public_constants():
    one, other = make_worlds(AUDITED, 2.0).frames
    assert one.height == RECORDS
    assert one[1:].equals(other[1:])
    assert not one[0].equals(other[0])


def test_the_noise_of_tables_is_found_and_no_more():
    """No more with the noise of releases; most of it with the same distribution from a seed."""
    pair = make_worlds(AUDITED, 1.0)
    seen = white_box(pair, 5000)
    assert attack(*seen.samples, seen.names, SURE).epsilon <= 1.0
    calls = count()
    seen = white_box(pair, 50_000, lambda values, use: StudyNoise(Streams.seeded(next(calls)))(values, use))
    assert 0.75 < attack(*seen.samples, seen.names).epsilon <= 1.0


def test_releases_of_tables_show_no_more_than_is_claimed(quick, tmp_path):
    found = audit_sampled(AUDITED, [2.0], 6, tmp_path, Streams.seeded(4), confidence=SURE)
    assert found["holds"].all()
    assert found["claim"].to_list() == [2.0, 2.0]


def test_noise_that_is_too_small_is_caught_in_what_is_published(quick, monkeypatch, tmp_path):
    """A planted bug: a thousandth of the noise, in whole releases whose tables are looked at."""
    pair = make_worlds(AUDITED, 0.5)
    own = StudyNoise.__call__
    monkeypatch.setattr(StudyNoise, "__call__", lambda self, values, use: own(self, values, quieter(use)))
    seen = black_box(pair, 24, tmp_path, Streams.seeded(5))
    assert attack(*seen.samples, seen.names).epsilon > pair.claim


def quieter(use):
    return replace(use, epsilon=1000 * use.epsilon)


# --- the commands ---


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return caught.value.code or 0, captured.out, captured.err


def test_the_exact_audit_prints_and_writes_its_figures(tmp_path, capsys):
    code, out, _ = run(capsys, "audit", "exact", "--pairs", 20, "--seed", 1, "--out", tmp_path / "a.csv")
    assert code == 0
    for words in ("adversarial", "blanked out", "not judged", "refutes nothing that was promised", "24 rows"):
        assert words in out
    written = pl.read_csv(tmp_path / "a.csv")
    assert written["holds"].to_list() == [True] * 20 + [None] * 4
    assert run(capsys, "audit", "exact", "--pairs", 20, "--seed", 1)[1] in out


def test_the_sampled_audit_prints_and_writes_its_figures(quick, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(SPEC)
    options = ("--epsilon", "2", "--runs", 2, "--confidence", SURE, "--out", tmp_path / "a.csv")
    code, out, _ = run(capsys, "audit", "sampled", tmp_path / "s.toml", *options)
    assert code == 0
    for words in ("white box", "black box", "would refute it", "Wrote"):
        assert words in out
    assert pl.read_csv(tmp_path / "a.csv")["holds"].to_list() == [True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "s.toml"]


def test_a_claim_that_does_not_hold_is_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(
        "svysynth.evaluation.audit.exact.contributions", lambda *arguments: 2 * contributions(*arguments)
    )
    code, out, _ = run(capsys, "audit", "exact", "--pairs", 20, "--seed", 1)
    assert code == 1
    assert "A claim does not hold" in out


@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        (GLOBAL, 'mechanism = "fbs"\nguarantee = "asymptotic"', (), "audit exact"),
        ("[privacy]", "[privacy]\nbudget = 3", (), "privacy.budget"),
        ("", "", ("--epsilon", "0"), "--epsilon"),
        ("", "", ("--epsilon", "a,b"), "--epsilon"),
        ("", "", ("--out", "audit.docx"), "audit.docx"),
    ],
)
def test_what_cannot_be_audited_is_one_error(tmp_path, capsys, old, new, options, message):
    (tmp_path / "s.toml").write_text(SPEC.replace(old, new))
    code, out, err = run(capsys, "audit", "sampled", tmp_path / "s.toml", *options)
    assert (code, out) == (1, "")
    assert message in err


def test_help_teaches(capsys):
    for command in ((), ("exact",), ("sampled",)):
        code, out, _ = run(capsys, "audit", *command, "--help")
        assert code == 0
        assert "neighbour" in out or "Example" in out
