"""Public constants: right from published figures and from a public file, never from the confidential one; what bounds
cost, against brute force; the command, as a user meets it."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from generate import CONSOLE, run, trimmed
from places import DOCS
from svysynth.cli.main import main
from svysynth.cli.release import write_example
from svysynth.core.errors import SurveyError
from svysynth.core.spec.whole import load_spec, parse_spec
from svysynth.evaluation.clamping import by_bounds, clamped
from svysynth.evaluation.public_file import from_public_file, refuse_confidential
from svysynth.mechanisms.noisy_sums.measuring.scaling import reach_of
from svysynth.mechanisms.noisy_sums.measuring.wrong_scales import cost_of_guesses, declared_facts
from svysynth.privacy.public_constants import Published, from_published, load_unfinished, round_outwards

PAGE = (DOCS / "constants.md").read_text(encoding="utf-8")
SAMPLE = {"records": 1000, "population": 12_000.0}
TYPED = ["--quartiles", "72000,128000", "--records", "1000", "--population", "12000"]
SIGMAS = 5
"""Monte Carlo errors that a test allows: one false alarm in two million."""


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["constants", *map(str, arguments)])
    captured = capsys.readouterr()
    return caught.value.code or 0, captured.out, captured.err


def two_digits(value):
    return pytest.approx(value, abs=0.5000001 * 10 ** (math.floor(math.log10(value)) - 1))


# --- from published figures ---


def published_ways(middle, spread):
    """The figures that a lognormal law would publish, in every way in which they can be given."""
    quantile = {level: math.exp(middle + spread * norm.ppf(level)) for level in (0.1, 0.25, 0.5, 0.75, 0.9)}
    mean, cv = math.exp(middle + spread**2 / 2), math.sqrt(math.expm1(spread**2))
    return [
        {"quartiles": (quantile[0.25], quantile[0.75])},
        {"deciles": (quantile[0.1], quantile[0.9]), "median": quantile[0.5]},
        {"mean": mean, "cv": cv},
        {"mean": mean, "sd": mean * cv},
        {"median": quantile[0.5], "cv": cv},
        {"mean": mean, "median": quantile[0.5]},
    ]


@settings(max_examples=30)
@given(middle=st.floats(-3, 15), spread=st.floats(0.05, 2.5), way=st.integers(0, 5))
def test_the_law_behind_published_figures_comes_back(middle, spread, way):
    found = from_published(Published(**published_ways(middle, spread)[way], **SAMPLE))
    assert found.outcome.middle == pytest.approx(middle, abs=1e-6)
    assert found.outcome.spread == pytest.approx(spread, rel=1e-6)
    assert found.standin.spread == two_digits(spread)
    assert found.standin.mean == pytest.approx(middle, abs=0.051 * 10 ** math.ceil(math.log10(spread)))
    assert found.notes == ()


def test_a_normal_outcome_needs_no_logarithm():
    for figures in ({"quartiles": (-1.349, 3.349)}, {"mean": 1.0, "sd": 3.4828}, {"mean": -1.0, "cv": 3.4828}):
        found = from_published(Published(**figures, **SAMPLE), "identity")
        assert found.outcome.spread == pytest.approx(3.4828, rel=1e-3)
        assert abs(found.outcome.middle) == pytest.approx(1, abs=1e-9)
        low, high = found.bounds.outcome
        assert low <= found.outcome.at(-4) < found.outcome.at(4) <= high


def test_what_public_columns_explain_narrows_the_spread_and_not_the_bounds():
    plain = from_published(Published(quartiles=(72e3, 128e3), design_effect=1.3, **SAMPLE))
    within = from_published(
        Published(quartiles=(72e3, 128e3), design_effect=1.3, explained=0.36, weight_explained=0.75, **SAMPLE)
    )
    assert within.standin.spread == two_digits(0.8 * plain.outcome.spread)
    assert within.standin.weight_spread == two_digits(0.5 * plain.weight.spread)
    assert within.bounds == plain.bounds


def test_weights_have_the_mean_and_the_spread_that_are_published():
    generator = np.random.default_rng(1)
    for figures in ({"weight_cv": 0.6}, {"design_effect": 1.36}):
        law = from_published(Published(quartiles=(1.0, 2.0), **SAMPLE, **figures)).weight
        drawn = np.exp(law.middle + law.spread * generator.standard_normal(400_000))
        error = SIGMAS / math.sqrt(len(drawn))
        assert drawn.mean() == pytest.approx(12, rel=0.6 * error)
        kurtosis = ((drawn - drawn.mean()) ** 4).mean() / drawn.var() ** 2
        assert drawn.var() == pytest.approx((0.6 * 12) ** 2, rel=math.sqrt(kurtosis) * error + 2 * error)
    assert from_published(Published(quartiles=(1.0, 2.0), weight_range=(2.0, 50.0))).weight.at(3) == pytest.approx(50)


def test_figures_that_disagree_are_remarked_upon():
    found = from_published(Published(quartiles=(72e3, 128e3), mean=96e3, cv=1.2, **SAMPLE))
    assert "The CV would give a spread of 0.94, not 0.43" in found.notes[0]


@given(low=st.floats(-1e9, 1e9), length=st.floats(1e-3, 1e9))
def test_rounding_goes_outwards_to_one_digit(low, length):
    ends = round_outwards(low, low + length)
    assert ends[0] <= low + 1e-8 * abs(low)
    assert ends[1] >= low + length - 1e-8 * abs(low + length)
    assert all(float(f"{end:.0e}") == end for end in ends)


NUMBERS = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e-320, 1e308, 1e39]), st.floats(0.1, 1e6))
PAIRS = st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS))


@settings(max_examples=100)
@given(
    figures=st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("mean", "median", "sd", "cv", "population", "weight_cv", "design_effect"), NUMBERS),
            **dict.fromkeys(("quartiles", "deciles", "range", "weight_range"), PAIRS),
            **dict.fromkeys(("explained", "weight_explained", "correlation"), NUMBERS),
            "records": st.integers(-5, 10**13),
        },
    ),
    transform=st.sampled_from(["log", "identity"]),
)
def test_bad_numbers_are_one_error_and_good_ones_a_fragment(figures, transform):
    try:
        found = from_published(Published(**{"quartiles": (4.0, 9.0)} | SAMPLE | figures), transform)
    except SurveyError:
        return
    assert parse_spec(SPEC + found.fragment()).standin == found.standin


SPEC = """[survey]
data = "x.csv"
outcome = "y"
weight = "w"
public = ["g"]
[privacy]
guarantee = "asymptotic"
epsilon = 1.0
"""


# --- from a public file ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The demo's files, and a public file that is like them."""
    folder = tmp_path_factory.mktemp("constants")
    write_example(folder / "svysynth-demo")
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def spec(folder):
    return load_spec(folder / "svysynth-demo/doctorates.toml")


def test_a_public_file_gives_the_spreads_that_numpy_computes(folder, spec):
    frame = pl.read_csv(folder / "public-2015.csv")
    found = from_public_file(spec, folder / "public-2015.csv", Published(records=10_355, population=125_199.0))
    field, gender = frame["field"].to_numpy(), frame["gender"].to_numpy()
    x = np.column_stack([*(field == level for level in range(1, 9)), gender == "M"]).astype(float)
    y = np.log(frame.select("salary", "weight").to_numpy())
    residual = y - x @ np.linalg.lstsq(x, y)[0]
    spread, weight_spread = np.sqrt((residual**2).sum(axis=0) / (len(x) - x.shape[1]))
    assert found.standin.spread == two_digits(spread)
    assert found.standin.weight_spread == two_digits(weight_spread)
    assert found.standin.correlation == pytest.approx(np.corrcoef(residual.T)[0, 1], abs=0.005001)
    assert found.standin.mean == pytest.approx(y[:, 0].mean(), abs=0.005001)
    low, high = found.bounds.outcome
    assert frame["salary"].min() / 20 < low <= frame["salary"].min() / 2
    assert 2 * frame["salary"].max() <= high < 20 * frame["salary"].max()
    scaled = frame["weight"] * (125_199 / 10_355 / frame["weight"].mean())
    assert found.bounds.weight == round_outwards(scaled.min() / 2, scaled.max() * 2)
    assert "Never use the confidential file" in found.fragment()


def test_interactions_of_the_formula_narrow_the_cells(folder, spec):
    frame = pl.read_csv(folder / "public-2015.csv")
    shifted = frame.with_columns(salary=pl.col("salary") * (1 + ((pl.col("field") > 4) & (pl.col("gender") == "M"))))
    shifted.write_csv(folder / "crossed.csv")
    crossed = spec.model_copy(update={"model": spec.model.model_copy(update={"formula": "field * gender"})})
    found = [from_public_file(one, folder / "crossed.csv").standin.spread for one in (spec, crossed)]
    assert found[0] > 1.05 * found[1] == pytest.approx(1.05 * 0.4, abs=0.02)


def test_of_a_synthetic_file_the_weights_before_smoothing_count(folder, spec):
    frame = pl.read_csv(folder / "public-2015.csv")
    smoothed = frame.with_columns(weight_unsmoothed=pl.col("weight"), weight=12.0 + pl.col("weight") / 100)
    smoothed.write_csv(folder / "synthetic.csv")
    plain, found = (from_public_file(spec, folder / name) for name in ("public-2015.csv", "synthetic.csv"))
    assert found.standin == plain.standin
    assert "weight_unsmoothed" in found.reasons["weight_spread"]


def test_the_confidential_file_is_refused_whatever_it_is_called(folder, spec, tmp_path, monkeypatch):
    data = spec.survey.data
    (tmp_path / "link.csv").symlink_to(data)
    os.link(data, tmp_path / "hard.csv")
    shutil.copy(data, tmp_path / "copy.csv")
    monkeypatch.chdir(data.parent)
    for name in (data, Path("doctorates.csv"), *(tmp_path / f"{kind}.csv" for kind in ("link", "hard", "copy"))):
        with pytest.raises(SurveyError, match="is the confidential file") as caught:
            from_public_file(spec, name)
        assert "must not come from the sample" in caught.value.remedy
    with pytest.raises(SurveyError, match="is the confidential file"):
        refuse_confidential(tmp_path / "parts/one.parquet", tmp_path / "parts")
    refuse_confidential(folder / "public-2015.csv", data)


def test_a_public_file_that_tells_nothing_is_one_error(folder, spec, tmp_path):
    frame = pl.read_csv(folder / "public-2015.csv")
    frame.with_columns(weight=1.0).write_csv(tmp_path / "flat.csv")
    frame.drop("gender").write_csv(tmp_path / "short.csv")
    frame.head(2).write_csv(tmp_path / "few.csv")
    for name in ("flat.csv", "short.csv", "few.csv", "none.csv", "x" * 5000):
        with pytest.raises(SurveyError) as caught:
            from_public_file(spec, tmp_path / name)
        assert "--standin" in caught.value.place or "model.formula" in caught.value.place
    with pytest.raises(SurveyError, match="cannot be combined"):
        from_public_file(spec, folder / "public-2015.csv", Published(median=5.0))


# --- into the spec ---


def test_the_fragment_completes_a_spec(folder):
    """A spec that asks for the guarantee and lacks its bounds can be read for this purpose, and only for this."""
    text = (folder / "svysynth-demo/doctorates.toml").read_text(encoding="utf-8").split("[standin]")[0]
    text = re.sub(r"^bounds = .*$", "", text, flags=re.MULTILINE)
    path = folder / "svysynth-demo/unfinished.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SurveyError, match=r"'privacy\.bounds' is required"):
        load_spec(path)
    spec = load_unfinished(path)
    assert spec.survey.data == path.parent / "doctorates.csv"
    found = from_published(Published(quartiles=(72e3, 128e3), records=10_355, population=125_199.0))
    path.write_text(path.read_text(encoding="utf-8") + "\n" + found.fragment(), encoding="utf-8")
    finished = load_spec(path)
    assert (finished.standin, finished.privacy.bounds) == (found.standin, found.bounds)
    path.write_text("[privacy", encoding="utf-8")
    with pytest.raises(SurveyError, match="not valid TOML"):
        load_unfinished(path)


# --- what wrong constants cost ---


@pytest.mark.parametrize("transform", ["log", "identity"])
def test_the_bias_of_bounds_agrees_with_brute_force(transform):
    figures = {"quartiles": (72e3, 128e3)} if transform == "log" else {"quartiles": (-10.0, 30.0)}
    law = from_published(Published(**figures, **SAMPLE), transform).outcome
    low, high = law.at(-1.2), law.at(0.9)
    found = clamped(law, low, high)
    t = law.middle + law.spread * np.random.default_rng(3).standard_normal((40, 50_000))
    y = np.exp(t) if transform == "log" else t
    cut = np.clip(y, low, high)
    if transform == "log":
        mean, logs = math.exp(law.middle + law.spread**2 / 2), np.log(cut)
        biases = cut.mean(axis=1) / mean - 1, np.exp(logs.mean(axis=1) + logs.var(axis=1) / 2) / mean - 1
    else:
        biases = ((cut - law.middle).mean(axis=1) / law.spread,) * 2
    expected = {"share_below": (y < low).mean(axis=1), "share_above": (y > high).mean(axis=1)}
    expected |= {"bias_of_mean": biases[0], "bias_of_model": biases[1]}
    for name, batches in expected.items():
        error = SIGMAS * batches.std(ddof=1) / math.sqrt(len(batches))
        assert found[name] == pytest.approx(batches.mean(), abs=error), name


def test_wide_bounds_do_nothing():
    found = from_published(Published(quartiles=(72e3, 128e3), **SAMPLE))
    proposed = by_bounds(found).filter(pl.col("reach").is_null())
    assert (proposed["share_below"] + proposed["share_above"] < 1e-4).all()
    assert (proposed["bias_of_mean"].abs() < 1e-4).all()


# --- the command ---


def test_the_command_opens_no_data_and_fits_a_terminal(folder, tmp_path, capsys):
    path = tmp_path / "s.toml"
    path.write_text((folder / "svysynth-demo/doctorates.toml").read_text(encoding="utf-8"), encoding="utf-8")
    code, out, err = command(capsys, path, *TYPED)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    found = from_published(Published(quartiles=(72e3, 128e3), **SAMPLE))
    assert found.fragment() in out
    code, _, err = command(capsys, *TYPED, "--out", tmp_path)
    assert code == 1
    assert "exists already" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the outcome's spread"),
        (["--mean", "5"], "the outcome's spread"),
        (["--cv", "0.5"], "the outcome's middle"),
        (["--quartiles", "5"], "--quartiles: is not a pair"),
        (["--quartiles", "9,4"], "--quartiles: must be in ascending order"),
        (["--quartiles", "nan,4"], "--quartiles: is not a number that can be used"),
        (["--quartiles", "-1,4"], "--transform identity"),
        (["--quartiles", "1,1e39"], "the outcome's spread"),
        (["--quartiles", "4,9"], "--records and --population"),
        (["--quartiles", "4,9", "--records", "100", "--population", "10"], "--population: is smaller"),
        ([*TYPED, "--population", "0"], "--population: must be above zero"),
        ([*TYPED, "--records", "-3"], "--records"),
        ([*TYPED, "--range", "80000,90000"], "--range: does not contain --quartiles"),
        ([*TYPED, "--range", "0,1e6"], "--range: must be above zero"),
        ([*TYPED, "--explained", "1"], "--explained"),
        ([*TYPED, "--correlation", "1"], "--correlation"),
        ([*TYPED, "--design-effect", "0.9"], "--design-effect"),
        ([*TYPED, "--design-effect", "inf"], "--design-effect"),
        ([*TYPED, "--transform", "sqrt"], "--transform"),
        ([*TYPED, "--standin", "x.csv"], "--standin: needs a spec"),
        (["none.toml", *TYPED], "none.toml: cannot be read"),
        ([*TYPED, "--out", "/dev/null/x"], "cannot be made"),
        ([*TYPED, "--out", "x" * 5000], "cannot be made"),
    ],
)
def test_bad_options_are_one_error_with_a_remedy(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(capsys, *arguments)
    assert code == 1
    assert err.count("\n") == 1
    assert message in err
    assert "Remedy" in err
    assert not any(tmp_path.iterdir())


def test_what_is_no_number_at_all_is_a_usage_error(capsys):
    assert command(capsys, "--mean", "many")[0] == 2


def test_the_confidential_file_is_refused_by_the_command(folder, capsys):
    demo = folder / "svysynth-demo"
    code, out, err = command(capsys, demo / "doctorates.toml", "--standin", demo / "doctorates.csv")
    assert (code, out) == (1, "")
    assert "is the confidential file of this spec" in err


# --- the page ---


@pytest.mark.parametrize(("shown", "output"), [(one["command"], one["output"]) for one in CONSOLE.finditer(PAGE)])
def test_the_page_shows_what_the_command_prints(folder, shown, output):
    assert run(shown, folder) == trimmed(output)


def test_the_page_s_other_commands_run(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (typed,) = re.findall(r"```sh\nsvysynth constants (.*?)\n```", PAGE)
    code, _, err = command(capsys, *typed.split())
    assert (code, err) == (0, "")
    assert (folder / "from-file/constants.toml").read_text() == re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]
    names = {"constants.toml", "bounds.csv", "constants.svg", "constants.png"}
    assert {path.name for path in (folder / "from-file").iterdir()} == names


# --- what a wrong guess of the scales costs ---


NOISY = """
[survey]
data = "nowhere.csv"
outcome = "salary"
weight = "w"
public = ["field", "gender"]
population_total = 12000
{levels}
[privacy]
mechanism = "{mechanism}"
guarantee = "global"
{scales}
epsilon = 6
"""
BOUNDED = "bounds = { outcome = [1000, 1000000], weight = [1, 1000] }"
LEVELS = '[survey.levels]\nfield = ["a", "b", "c"]\ngender = ["F", "M"]\n'


def costs(spread=0.5, weight_spread=0.4, epsilon=6.0, records=6000, transform="log", **more):
    quartiles = tuple(11 + sign * spread * norm.ppf(0.75) for sign in (-1, 1))
    quartiles = tuple(map(math.exp, quartiles)) if transform == "log" else quartiles
    sample = {"records": records, "population": 50_000.0, "weight_cv": math.sqrt(math.expm1(weight_spread**2))}
    proposal = from_published(Published(quartiles=quartiles, **sample, **more), transform)
    spec = parse_spec(NOISY.format(levels=LEVELS, mechanism="fbs", scales=BOUNDED))
    facts = declared_facts(spec.survey, records)
    found = cost_of_guesses(proposal, facts, spec.requested_tables, epsilon)
    return {row.pop("guess"): row for row in found.to_dicts()}, reach_of(records, epsilon)


def test_the_share_clamped_is_that_of_two_normal_numbers():
    """|a| + |b| ≤ r is a square: (a ± b)/√2 are independent, and both within r/√2."""
    found, reach = costs()
    inside = 2 * norm.cdf(reach / math.sqrt(2)) - 1
    assert found["as proposed"]["clamped"] == pytest.approx(1 - inside**2, rel=0.03, abs=2e-5)
    random = np.random.default_rng(4)
    first, second = np.abs(random.standard_normal((2, 2_000_000)))
    for name, (one, other) in {"outcome: half": (2, 1), "weight: twice": (1, 0.5)}.items():
        share = (one * first + other * second > reach).mean()
        assert found[name]["clamped"] == pytest.approx(share, abs=SIGMAS * math.sqrt(share / 2e6) + 2e-5)


@pytest.mark.parametrize("transform", ["log", "identity"])
def test_the_bias_is_that_of_a_model_fitted_to_clamped_answers(transform):
    found, reach = costs(transform=transform, correlation=0.6)
    random = np.random.default_rng(5)
    a, b = random.standard_normal((2, 2_000_000))
    b = 0.6 * a + 0.8 * b
    shrink = np.minimum(1, reach / np.maximum(2 * np.abs(a) + np.abs(b), 1e-9))
    t, v = 0.5 * a, 0.4 * b
    kept = t * shrink, v * shrink
    levels = [x.mean() + (transform == "log") * x.var() / 2 + np.cov(x, y)[0, 1] for x, y in ((t, v), kept)]
    bias = math.expm1(levels[1] - levels[0]) if transform == "log" else (levels[1] - levels[0]) / 0.5
    assert found["outcome: half"]["bias_of_model"] == pytest.approx(bias, rel=0.05)
    assert abs(bias) > 5e-4


def test_wide_scales_cost_noise_and_narrow_ones_look_precise():
    found, _ = costs(epsilon=2.0)
    assert found["as proposed"]["se_of_means"] == found["as proposed"]["se_of_counts"] == 1
    for name in ("outcome", "weight"):
        assert found[f"{name}: half"]["clamped"] > 10 * found["as proposed"]["clamped"]
        assert found[f"{name}: twice"]["clamped"] < found["as proposed"]["clamped"]
        assert found[f"{name}: twice"]["se_of_means"] > 1.2 > 1 > found[f"{name}: half"]["se_of_means"]
    assert found["outcome: twice"]["bias_of_model"] == pytest.approx(0, abs=1e-6)


def test_without_noise_the_scales_cost_nothing():
    found, _ = costs(epsilon=1e5)
    for row in found.values():
        assert row["se_of_means"] == pytest.approx(1, abs=0.02)
        assert row["se_of_counts"] == pytest.approx(1, abs=0.02)


def test_the_command_shows_it_for_fbs_and_fbp_alone(tmp_path, capsys):
    """A spec that lacks the very constants, and one with a mechanism that has no scales."""
    for mechanism, scales, shown in (("fbs", 'scales = "standin"', True), ("fbp", "", True), ("laplace", "", False)):
        path = tmp_path / f"{mechanism}.toml"
        path.write_text(NOISY.format(levels=LEVELS, mechanism=mechanism, scales=scales))
        code, out, _ = command(capsys, path, *TYPED)
        assert code == 0
        assert ("What wrong scales cost, at ε = 6, for 6 equal cells" in " ".join(out.split())) == shown
    path.write_text(NOISY.format(levels="", mechanism="fbs", scales=""))
    code, out, _ = command(capsys, path, *TYPED)
    assert "for the whole file (not all levels are declared)" in " ".join(out.split())
    code, out, _ = command(capsys, path, "--quartiles", "72000,128000", "--weight-range", "2,90")
    assert code == 0
    assert "With --records a table shows what wrong scales cost" in " ".join(out.split())
