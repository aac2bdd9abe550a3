"""One verdict on a finished release: what weighs how much, and where it is shown."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from incomes import house, people, run
from svysynth.cli.main import main
from svysynth.mechanisms.findings import Finding
from svysynth.mechanisms.pseudo_posterior.calibration import Calibration, Trial, fit_unweighted
from svysynth.mechanisms.pseudo_posterior.python_interface import Calibrated
from svysynth.models.diagnostics import Verdict
from svysynth.models.records import make_records
from svysynth.privacy.budgets import BudgetState
from svysynth.publishing.verdict import SHAPE_OFF, beside, judge_release


def tables(estimates, ses, df=1000.0, statistic="mean"):
    rows = len(estimates)
    return pl.DataFrame(
        {
            "table": ["t"] * rows,
            "statistic": [statistic] * rows,
            "sex": ["All", *(f"level {number}" for number in range(1, rows))],
            "estimate": estimates,
            "se": ses,
            "df": [df] * rows,
            "lower": [q - 2 * se for q, se in zip(estimates, ses, strict=True)],
            "upper": [q + 2 * se for q, se in zip(estimates, ses, strict=True)],
        }
    )


DIRECT = tables([100.0] * 10, [5.0] * 10)


def judged(released, findings=(), complaints=(), budget=None, direct=DIRECT):
    return judge_release(beside(released, direct), findings, complaints, budget)


def test_a_release_like_the_direct_tables_is_to_be_published():
    found = judged(tables([101.0] * 10, [5.0] * 10))
    assert found.level == "publish"
    assert found.lines() == ["Verdict: publish."]


@pytest.mark.parametrize(
    ("released", "level", "words"),
    [
        (tables([100.0] * 10, [3.0] * 10), "look closer", "standard errors of means are 0.6 times the direct ones"),
        (tables([100.0] * 10, [1e-6] * 10), "do not publish", "standard errors of means are 2e-07"),
        (tables([100.0] * 7 + [120.0] * 3, [5.0] * 10), "look closer", "3 of 10 direct means lie outside"),
        (tables([100.0] * 3 + [120.0] * 7, [5.0] * 10), "do not publish", "7 of 10 direct means lie outside"),
        (tables([140.0] + [100.0] * 9, [5.0] * 10), "do not publish", "mean of the whole file"),
        (tables([100.0] * 10, [5.0] * 10, df=2.3), "look closer", "fewer than 5 degrees of freedom"),
    ],
)
def test_each_reason_has_its_weight(released, level, words):
    found = judged(released)
    assert found.level == level
    assert words in "\n".join(found.lines())


def test_one_cell_that_is_far_off_is_named():
    """The others may all be right: a reader looks at this one too."""
    found = judged(tables([100.0] * 9 + [200.0], [5.0] * 10))
    assert found.level == "look closer"
    assert "mean of level 9" in "\n".join(found.lines())


def test_one_cell_that_is_many_of_its_own_standard_errors_off_is_named():
    """Four direct standard errors: by these alone it would not be."""
    found = judged(tables([100.0] * 9 + [120.0], [5.0] * 10))
    assert found.level == "look closer"
    assert "mean of level 9" in found.lines()[1]
    assert judged(tables([100.0] * 9 + [117.0], [5.0] * 10)).level == "publish"


def test_a_file_s_mean_that_is_far_off_counts_whatever_the_direct_error():
    """One outlier makes the direct error large, and nothing is then far off in such errors."""
    direct = tables([750.0] + [100.0] * 9, [700.0] + [5.0] * 9)
    assert judged(tables([62.0] + [100.0] * 9, [1.5] + [5.0] * 9), direct=direct).level == "do not publish"


def test_noise_whose_interval_holds_the_direct_figure_is_not_called_wrong():
    assert judged(tables([140.0] + [100.0] * 9, [25.0] + [5.0] * 9)).level == "publish"


@pytest.mark.parametrize("statistic", ["median", "quantile(0.9)", "share(> 50000)"])
@pytest.mark.parametrize(
    ("estimates", "level", "words"),
    [
        ([89.0] + [100.0] * 9, "look closer", "of the whole file is 2.2 direct standard errors from the direct"),
        ([91.0] + [100.0] * 9, "publish", ""),
        ([100.0] * 7 + [111.0] * 3, "look closer", "3 of 10"),
        ([100.0] * 8 + [111.0] * 2, "publish", ""),
    ],
)
def test_quantiles_and_shares_are_judged_although_their_intervals_hold_the_direct_ones(
    statistic, estimates, level, words
):
    """A shape that does not fit moves them, and intervals as long as those of the sample hide it."""
    direct = tables([100.0] * 10, [5.0] * 10, statistic=statistic)
    found = judged(tables(estimates, [8.0] * 10, statistic=statistic), direct=direct)
    assert found.level == level
    assert words in found.lines()[-1]
    means = judged(tables(estimates, [8.0] * 10))
    assert means.level == "publish"


def test_quantiles_of_a_model_of_the_right_shape_are_rarely_named():
    """Three files of a normal model fitted to normal answers: medians differ by 0.95 direct standard errors, or 1 in 28
    by more than two. The limit on the share of 2,000 samples is a false alarm in 10,000."""
    generator, n, runs, error = np.random.default_rng(3), 100, 2000, np.sqrt(np.pi / 200)
    y = 10 + generator.standard_normal((runs, 1, n))
    spread = y.std(axis=2, ddof=1) * np.sqrt((n - 1) / generator.chisquare(n - 1, (runs, 3)))
    centre = y.mean(axis=2) + spread * generator.standard_normal((runs, 3)) / np.sqrt(n)
    files = centre[..., np.newaxis] + spread[..., np.newaxis] * generator.standard_normal((runs, 3, n))
    medians = np.median(files, axis=2).mean(axis=1), np.median(y[:, 0], axis=1)
    released, direct = (tables(list(one), [error] * runs, statistic="median") for one in medians)
    named = (beside(released, direct)["off"].abs() > SHAPE_OFF).mean()
    assert 0.02 < named < 0.036 + 3.7 * np.sqrt(0.036 * 0.964 / runs)


def test_what_was_found_before_and_the_diagnostics_and_the_budget_count():
    same = tables([100.0] * 10, [5.0] * 10)
    advice = Finding("column 'y'", "it is odd", "this matters", "use another", stops=False)
    assert (
        judged(same, [advice]).lines()[1] == "look closer: column 'y': it is odd. This matters. Instead: use another."
    )
    assert judged(same, complaints=["the chains disagree"]).level == "do not publish"
    nearly_spent = BudgetState("people", "asymptotic", 10_000_000, 7_000_000, 2)
    assert "70% of the budget is spent: ε = 3 is left" in judged(same, budget=nearly_spent).lines()[1]
    assert judged(same, budget=BudgetState("people", "asymptotic", 10_000_000, 4_000_000, 1)).level == "publish"


def test_a_direct_estimate_without_error_gives_no_ratio():
    """A count that the design fixes has a standard error of nothing but rounding; it once gave ratios of 10^15."""
    direct = tables([6194.0, 4421.0], [4e-13, 3e-13], statistic="count")
    compared = beside(tables([6194.0, 4421.0], [80.0, 60.0], statistic="count"), direct)
    for name in ("ratio", "overlap", "off", "se_ratio"):
        assert compared[name].is_null().all()
    assert judge_release(compared, [], [], None).level == "publish"


@pytest.mark.parametrize(("estimate", "level"), [(101.0, "publish"), (40.0, "look closer")])
def test_a_cell_without_a_direct_error_is_judged_by_the_released_one(estimate, level):
    """Certainty units have no sampling error; a figure that is far off them was once not looked at."""
    direct = tables([100.0] * 10, [5.0] * 9 + [0.0])
    found = judged(tables([100.0] * 9 + [estimate], [5.0] * 10), direct=direct)
    assert found.level == level
    assert all("mean of level 9" in line for line in found.lines()[1:])


def test_the_gravest_reason_comes_first():
    found = judged(tables([100.0] * 10, [1e-6] * 10, df=2.0))
    levels = [line.split(":")[0] for line in found.lines()]
    assert levels == ["Verdict", "do not publish", "do not publish", "look closer"]


@pytest.mark.parametrize(("se", "level"), [(4.0, "publish"), (3.0, "look closer"), (1.5, "do not publish")])
def test_a_standard_error_of_the_whole_file_that_is_far_too_small_counts_by_itself(se, level):
    """Clusters that are far from all others show there first, and the median over cells hides it."""
    whole = tables([100.0] * 10, [se] + [5.0] * 9)
    assert judged(whole).level == level


def test_a_count_of_the_whole_file_that_is_declared_has_no_error():
    counts = tables([100.0] * 10, [0.0] + [5.0] * 9, statistic="count")
    assert judged(counts, direct=tables([100.0] * 10, [5.0] * 10, statistic="count")).level == "publish"


def test_release_ends_with_it_and_the_internal_folder_begins_with_it(paper_demo, tmp_path, capsys):
    spec = tmp_path / "s.toml"
    text = (paper_demo / "doctorates.toml").read_text().replace('"doctorates.csv"', f'"{paper_demo}/doctorates.csv"')
    spec.write_text(
        text.replace("datasets = 3", f'datasets = 3\ncorrection = false\nledger = "{paper_demo}/ledger.sqlite"')
    )
    with pytest.raises(SystemExit) as caught:
        main(["release", str(spec), "--out", str(tmp_path / "r")])
    assert not caught.value.code
    shown = capsys.readouterr().out
    verdict = json.loads((tmp_path / "r/internal/verdict.json").read_text())
    assert f"Verdict: {verdict['verdict']}." in shown
    assert shown.index("INTERNAL USE ONLY") < shown.index("Verdict:")
    page = (tmp_path / "r/internal/report.html").read_text()
    assert f"Verdict: {verdict['verdict']}" in page
    assert page.index('id="verdict"') < page.index('id="summary"')
    for path in (tmp_path / "r/public").iterdir():
        if path.suffix in (".html", ".json", ".csv"):
            assert "verdict" not in path.read_text().lower()


def test_what_the_diagnostics_complain_of_reaches_the_verdict_of_a_release(tmp_path, monkeypatch, capsys):
    """Calibration refuses such draws itself; should it ever not, the reviewer still reads of them."""

    def distrusted(model, survey, epsilon, datasets, formula, scheme, draws, streams, progress):
        start = fit_unweighted(model, make_records(survey, formula), streams, draws)
        doubtful = replace(start.fit, verdict=Verdict(1.2, 500.0, 500.0, 3, 1.0))
        trials = (Trial(float("inf"), 1.0),)
        found = Calibration(doubtful, start.bounds, start.bounds, 1.0, 1.0, epsilon, datasets, trials)
        return Calibrated(survey, found, streams, scheme)

    monkeypatch.setattr("svysynth.mechanisms.pseudo_posterior.mechanism.calibrate_suitable", distrusted)
    spec = house(tmp_path, people())
    assert run("release", spec, "--out", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    verdict = json.loads((tmp_path / "out/internal/verdict.json").read_text())
    assert verdict["verdict"] == "do not publish"
    complaints = [reason["text"] for reason in verdict["reasons"] if "cannot be trusted" in reason["text"]]
    assert len(complaints) == 2
    assert "R-hat 1.200" in complaints[0]
    assert "3 transitions" in complaints[1]
    for complaint in complaints:
        assert f"do not publish: {complaint}" in shown
