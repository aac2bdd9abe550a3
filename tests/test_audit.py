"""The sampled audit: its statistics on mechanisms of known ε, whole releases under attack, and the commands."""

from dataclasses import replace
from functools import partial
from itertools import count

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from scipy import stats

from svysynth import pipeline, publish, worlds
from svysynth.attack import attack, lower_bounds
from svysynth.audit import HIGH, LOG_PRIOR, censored, make_pairs, normalized
from svysynth.cli import main
from svysynth.interval import Interval
from svysynth.noise import StudyNoise
from svysynth.spec import parse_spec
from svysynth.streams import Streams
from svysynth.worlds import audit_sampled, black_box, make_worlds, noisy_sums, white_box

EPSILONS = (0.5, 1.0, 2.0)
SURE = 1 - 1e-6
"""Where the noise is the operating system's: a false alarm in a million runs."""
RECORDS, FILES = 64, 4
"""Of the tests' releases: so many chains run anyway, and one compiled program serves all."""
SPEC = """
[survey]
data = "nowhere.csv"
outcome = "income"
weight = "weight"
public = ["cell"]
population_total = 1000

[privacy]
mechanism = "{mechanism}"
guarantee = "global"
epsilon = 1.0
bounds = {{ outcome = [100.0, 1000000.0], weight = [0.1, 200.0] }}

[standin]
mean = 10.0
spread = 0.5
"""


def spec_of(mechanism):
    return parse_spec(SPEC.format(mechanism=mechanism))


# --- mechanisms of which ε is known ---


def randomised_response(epsilon, runs, generator):
    """A bit that is told truly with odds e^ε."""
    lie = 1 / (1 + np.exp(epsilon))
    return tuple((generator.random((runs, 1)) < share).astype(float) for share in (1 - lie, lie))


def laplace_noise(epsilon, runs, generator):
    return tuple(value + generator.laplace(0, 1 / epsilon, (runs, 1)) for value in (1.0, 0.0))


def censored_draws(epsilon, runs, generator):
    """Exact draws of the censored posterior on the grid, a record blanked out: the log ratio at each draw.

    Of 200 adversarial neighbours those are taken for which some event shows the most with so many draws.
    """
    pairs = make_pairs(400, Streams.seeded(3))[1::2]
    samples = [pair.changed for pair in pairs] + [pair.blanked for pair in pairs]
    interval = Interval.of_budget(epsilon, 1, HIGH)
    one, other = np.split(normalized(LOG_PRIOR + censored(samples, interval)), 2)
    best = max(range(len(pairs)), key=lambda pair: shown(one[pair], other[pair], runs))
    ratio = one[best] - other[best]
    chances = np.exp([one[best], other[best]])
    return tuple(generator.choice(ratio, (runs, 1), p=chance / chance.sum()) for chance in chances)


def shown(one, other, runs):
    """The largest log P/Q over events {ratio ≥ c}, less three standard errors."""
    order = np.argsort(other - one)
    p, q = np.cumsum(np.exp(one[order])), np.cumsum(np.exp(other[order]))
    return np.max(np.log(p / q) - 3 * np.sqrt(1 / (runs * p) + 1 / (runs * q)))


TIGHT = {
    "randomised response": (randomised_response, 100_000),
    "Laplace noise": (laplace_noise, 100_000),
    "censored posterior": (censored_draws, 1_000_000),
}


def tight_bound(name, epsilon):
    mechanism, runs = TIGHT[name]
    return attack(*mechanism(epsilon, runs, np.random.default_rng(7)), ["the result"])


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
    monkeypatch.setattr(pipeline, "write_internal", lambda *_, **__: None)
    monkeypatch.setattr(publish, "public_page", lambda *_, **__: "")


def test_releases_with_the_global_guarantee_show_no_more_than_is_claimed(quick, tmp_path):
    """A few of FBP; `make study` makes many, of FBS too."""
    found = audit_sampled(spec_of("fbp"), [2.0], 4, tmp_path, Streams.seeded(4), files=FILES, records=RECORDS)
    assert found["attack"].to_list() == ["white box", "black box"]
    assert found["claim"].to_list() == [4.0, 4.0]
    assert found["counted"].to_list() == [8, 8]
    assert found["holds"].all()
    assert found["refused"].sum() + found["refused other"].sum() == 0


def test_the_best_statistic_tells_the_worlds_apart():
    """One record of 64 moves the draws: their mean log ratio differs between the worlds by three standard errors."""
    pair = make_worlds(spec_of("fbp"), 2.0, FILES, RECORDS, Streams.seeded(4))
    one, other = white_box(pair, 10, Streams.seeded(5)).samples
    assert len(one) == len(other) == 40
    assert np.abs(np.vstack([one, other])).max() <= pair.claim
    assert one.mean() - other.mean() > 3 * np.sqrt((one.var() + other.var()) / 40)


def test_worlds_differ_in_one_respondent_and_are_made_of_public_constants():
    for mechanism in ("fbp", "laplace"):
        pair = make_worlds(spec_of(mechanism), 2.0, FILES, RECORDS, Streams.seeded(4))
        one, other = pair.frames
        assert one.height == RECORDS
        assert one[1:].equals(other[1:])
        assert not one[0].equals(other[0])


def test_the_noise_of_tables_is_found_and_no_more():
    """No more with the noise of releases; most of it with the same distribution from a seed."""
    pair = make_worlds(spec_of("laplace"), 1.0, 1, None, Streams.seeded(4))
    seen = noisy_sums(pair, 5000)
    assert attack(*seen.samples, seen.names, SURE).epsilon <= 1.0
    calls = count()
    seen = noisy_sums(pair, 50_000, lambda values, use: StudyNoise(Streams.seeded(next(calls)))(values, use))
    assert 0.75 < attack(*seen.samples, seen.names).epsilon <= 1.0


def test_releases_of_tables_show_no_more_than_is_claimed(quick, tmp_path):
    found = audit_sampled(spec_of("laplace"), [2.0], 6, tmp_path, Streams.seeded(4), confidence=SURE)
    assert found["holds"].all()
    assert found["claim"].to_list() == [2.0, 2.0]


def test_noise_that_is_too_small_is_caught_in_what_is_published(quick, monkeypatch, tmp_path):
    """A planted bug: a thousandth of the noise, in whole releases whose tables are looked at."""
    pair = make_worlds(spec_of("laplace"), 0.5, 1, None, Streams.seeded(4))
    own = StudyNoise.__call__
    monkeypatch.setattr(StudyNoise, "__call__", lambda self, values, use: own(self, values, quieter(use)))
    seen = black_box(pair, 24, tmp_path, Streams.seeded(5))
    assert attack(*seen.samples, seen.names).epsilon > pair.claim


def quieter(use):
    return replace(use, epsilon=1000 * use.epsilon)


def test_a_correction_by_the_data_is_caught_in_what_is_published(quick, monkeypatch, tmp_path):
    """A planted bug: draws are moved to the mean of the confidential outcomes."""
    pair = make_worlds(spec_of("fbp"), 0.7, FILES, RECORDS, Streams.seeded(4))

    def corrected(model, draw, interval, records, *_):
        return draw | {"beta": jnp.asarray([records.t.mean()]), "sigma_y": jnp.asarray(1e-6)}

    monkeypatch.setattr(pipeline, "correct", corrected)
    seen = black_box(pair, 10, tmp_path, Streams.seeded(5))
    assert attack(*seen.samples, seen.names).epsilon > pair.claim


# --- the commands ---


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return caught.value.code or 0, captured.out, captured.err


def test_the_exact_audit_prints_and_writes_its_figures(tmp_path, capsys):
    code, out, _ = run(capsys, "audit", "exact", "--pairs", 20, "--seed", 1, "--out", tmp_path / "a.csv")
    assert code == 0
    for words in ("adversarial", "blanked out", "not judged", "refutes nothing that was promised", "8 rows"):
        assert words in out
    written = pl.read_csv(tmp_path / "a.csv")
    assert written["holds"].to_list() == [True] * 4 + [None] * 4
    assert run(capsys, "audit", "exact", "--pairs", 20, "--seed", 1)[1] in out


def test_the_sampled_audit_prints_and_writes_its_figures(quick, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(SPEC.format(mechanism="laplace"))
    options = ("--epsilon", "2", "--runs", 2, "--confidence", SURE, "--out", tmp_path / "a.csv")
    code, out, _ = run(capsys, "audit", "sampled", tmp_path / "s.toml", *options)
    assert code == 0
    for words in ("white box", "black box", "would refute it", "Wrote"):
        assert words in out
    assert pl.read_csv(tmp_path / "a.csv")["holds"].to_list() == [True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "s.toml"]


def test_a_claim_that_does_not_hold_is_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr("svysynth.audit.censored", partial(broken, factor=2.0))
    code, out, _ = run(capsys, "audit", "exact", "--pairs", 20, "--seed", 1)
    assert code == 1
    assert "A claim does not hold" in out


def broken(samples, interval, factor):
    return factor * censored(samples, interval)


@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        ('guarantee = "global"', 'guarantee = "asymptotic"', (), "audit exact"),
        ("[privacy]", "[privacy]\nbudget = 3", (), "privacy.budget"),
        ("", "", ("--epsilon", "0"), "--epsilon"),
        ("", "", ("--epsilon", "a,b"), "--epsilon"),
        ("", "", ("--out", "audit.docx"), "audit.docx"),
    ],
)
def test_what_cannot_be_audited_is_one_error(tmp_path, capsys, old, new, options, message):
    (tmp_path / "s.toml").write_text(SPEC.format(mechanism="fbs").replace(old, new))
    code, out, err = run(capsys, "audit", "sampled", tmp_path / "s.toml", *options)
    assert (code, out) == (1, "")
    assert message in err


def test_a_survey_too_small_for_its_interval_is_refused_in_words(tmp_path, capsys):
    """The refusal is the releases' own: nothing is weakened for an audit."""
    (tmp_path / "s.toml").write_text(SPEC.format(mechanism="fbp"))
    options = ("--epsilon", "0.1", "--records", RECORDS, "--runs", 2, "--files", FILES, "--seed", 1)
    code, _, err = run(capsys, "audit", "sampled", tmp_path / "s.toml", *options)
    assert code == 1
    assert "every release was refused" in err


def test_help_teaches(capsys):
    for command in ((), ("exact",), ("sampled",)):
        code, out, _ = run(capsys, "audit", *command, "--help")
        assert code == 0
        assert "neighbour" in out or "Example" in out
