"""What docs/reproduction.md says of the committed results, and the studies of what choices and populations do."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

import study_of_paper_choices
import study_of_paper_populations
from criteria import unmet
from places import DOCS
from study_of_paper_choices import VARIANTS, coverages, length_ratios
from svysynth.survey.doctorates import published_table

CHOICES = DOCS / "published/choices.csv"
POPULATIONS = DOCS / "published/populations.csv"
LENGTHS = DOCS / "published/populations-lengths.csv"


@pytest.fixture(params=["simulation", "published"])
def committed(request):
    """A committed run: by the studies' own definitions, and as published."""
    return lambda name: pl.read_csv(DOCS / request.param / f"{name}.csv")


def test_all_16_ratios_of_lengths_are_near_the_paper_s(committed):
    columns = {"counts_fbp_over_fbs": "count", "salary_fbp_over_fbs": "mean"}
    paper = published_table("ci_length_ratios").unpivot(
        list(columns), index=["lipschitz", "datasets"], variable_name="statistic", value_name="paper"
    )
    both = (
        committed("length-ratios")
        .filter(method="fbp")
        .join(paper.with_columns(pl.col("statistic").replace(columns)), on=["lipschitz", "datasets", "statistic"])
    )
    assert both.height == 16
    assert both["replicates"].unique().to_list() == [1000]
    for statistic, most in (("count", 0.06), ("mean", 0.05)):
        own = both.filter(statistic=statistic)
        assert (own["ratio"] - own["paper"]).abs().max() < most


def test_mean_lengths_are_within_5_percent(committed):
    found = length_ratios(committed("comparison"))
    assert found.height == 4
    assert (found["ratio"] - 1).abs().max() < 0.05


def test_coverages_within_3_standard_errors():
    """By the pooled formula, and by Fisher's exact test at the same level."""
    agree = {}
    for folder in ("simulation", "published"):
        found = coverages(pl.read_csv(DOCS / folder / "comparison.csv"))
        assert found.height == 96
        hits = [(round(100 * paper), round(1000 * here)) for paper, here in found.select("paper", "here").iter_rows()]
        exact = [stats.fisher_exact([[theirs, 100 - theirs], [ours, 1000 - ours]]).pvalue for theirs, ours in hits]
        agree[folder] = (found["difference"].abs() <= 3).sum(), np.sum(np.array(exact) > 2 * stats.norm.sf(3))
    assert agree == {"simulation": (81, 86), "published": (92, 95)}
    assert agree["published"][0] >= 0.9 * 96


def test_fbp_misses_the_counts_of_field_7_and_no_others(committed):
    found = coverages(committed("comparison"))
    counts = found.filter(pl.col("section").str.starts_with("Counts"), column="FBP coverage")
    missed = counts.filter(pl.col("row").is_in(["Field 7", "Field 7, male"]))
    assert missed["difference"].abs().max() < 3
    assert missed["here"].max() < 0.7
    assert counts.join(missed, on="row", how="anti")["here"].min() > 0.85


def test_by_the_studies_own_definitions_fbp_covers_field_7_about_every_other_time():
    found = coverages(pl.read_csv(DOCS / "simulation/comparison.csv")).filter(column="FBP coverage")
    counts = found.filter(
        pl.col("section").str.starts_with("Counts"), pl.col("row").is_in(["Field 7", "Field 7, male"])
    )
    assert counts.height == 2
    assert counts["here"].is_between(0.5, 0.6).all()


def middle_of(ratios):
    return {key: group["rmse_ratio"].median() for key, group in ratios.group_by("method", "statistic")}


def test_in_the_selected_sample_fbs_is_better_on_counts_and_both_are_better_than_noise(committed):
    middle = middle_of(committed("rmse-ratios").filter(lipschitz=1.8, datasets=3))
    assert middle["fbs", "count"] < middle["fbp", "count"] < middle["laplace", "count"]
    assert max(middle["fbs", "mean"], middle["fbp", "mean"]) < middle["laplace", "mean"]


def test_by_the_studies_own_definitions_fbp_is_better_on_salary_and_noise_wins_no_salary():
    ratios = pl.read_csv(DOCS / "simulation/rmse-ratios.csv").filter(lipschitz=1.8, datasets=3)
    middle = middle_of(ratios)
    assert middle["fbp", "mean"] < middle["fbs", "mean"]
    salary = ratios.filter(statistic="mean").pivot("method", index=["field", "gender"], values="rmse_ratio")
    assert salary.height == 27
    assert (salary["fbs"] < salary["laplace"]).all()
    assert (salary["fbp"] < salary["laplace"]).all()


def test_each_choice_has_its_part():
    assert unmet(study_of_paper_choices.criteria(pl.read_csv(CHOICES))) == []


def test_the_paper_s_may_be_one_of_these_populations():
    assert unmet(study_of_paper_populations.criteria(pl.read_csv(POPULATIONS))) == []


def test_one_length_of_96_is_beyond_what_populations_spread():
    cells = pl.read_csv(LENGTHS)
    off = (cells["mean"] - cells["paper"]) / (cells["spread"] * np.sqrt(1 + 1 / 8))
    chance = 2 * stats.t.sf(off.abs().to_numpy(), 7)
    assert cells.height == 96
    assert cells.filter(chance < 2 * stats.norm.sf(3))["row"].to_list() == ["Field 7, male"]
    assert (chance < 0.05).sum() == 22


# --- the programs ---


@pytest.fixture
def made_up(monkeypatch):
    """Studies that run no replicates: the committed figures, which differ a little from study to study."""
    calls = []

    def frames(study, folder, replicates, *_):
        calls.append(study)
        comparison = pl.read_csv(DOCS / "published/comparison.csv")
        other = comparison.with_columns(here=pl.col("here") * (1 + 0.001 * len(calls)))
        ratios = pl.read_csv(DOCS / "published/length-ratios.csv").filter(lipschitz=1.8)
        return {"comparison": other, "length-ratios": ratios}

    def replicates(folder, indices):
        study = calls[-1]
        truth = study.truth()["truth"].to_numpy()
        generator = np.random.default_rng(len(calls))
        shape = (len(indices), len(study.plan.scenarios), len(truth))
        estimate = truth * (1 + 0.05 * generator.standard_normal(shape))
        return [{"tables": np.stack([one, 0.05 * truth + 0 * one, 0.1 * truth + 0 * one], axis=-1)} for one in estimate]

    monkeypatch.setattr(study_of_paper_choices, "simulation_frames", frames)
    monkeypatch.setattr(study_of_paper_choices, "load_replicates", replicates)
    monkeypatch.setattr(study_of_paper_populations, "simulation_frames", frames)
    return calls


def test_the_choices_are_written_and_judged(made_up, tmp_path, capsys):
    assert study_of_paper_choices.main(["--replicates", "12", "--out", str(tmp_path)]) == 1
    written, committed = pl.read_csv(tmp_path / "published/choices.csv"), pl.read_csv(CHOICES)
    assert written["choices"].to_list() == committed["choices"].to_list() == list(VARIANTS)
    assert written.columns == committed.columns
    assert written["replicates"].unique().to_list() == [12]
    assert [study.plan.bounds for study in made_up] == [(1.8,)] * len(VARIANTS)
    assert "A criterion is not met: the ratio of lengths, 1.38 in the paper" in capsys.readouterr().err


def test_the_populations_are_written_and_judged(made_up, tmp_path, capsys):
    assert study_of_paper_populations.main(["--replicates", "3", "--populations", "2", "--out", str(tmp_path)]) == 1
    written, committed = pl.read_csv(tmp_path / "published/populations.csv"), pl.read_csv(POPULATIONS)
    assert written.columns == committed.columns
    assert written["seed"].to_list() == [study.seed for study in made_up] == [1, 2]
    lengths, others = pl.read_csv(tmp_path / "published/populations-lengths.csv"), pl.read_csv(LENGTHS)
    same = ["section", "row", "column", "paper"]
    assert lengths.select(same).equals(others.select(same))
    assert lengths["populations"].unique().to_list() == [2]
    assert "A criterion is not met: FBP's coverages of the count of field 7's men" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("choices", "changed", "told"),
    [
        ("all", {"agree": 80}, "with all choices 80 of 96 coverages agree"),
        ("all", {"counts length FBS": 1.04}, "all: a mean length is off by 0.040"),
        ("all, and a shift", {"counts length FBS": 0.96}, "all, and a shift: a mean length is off by 0.040"),
        ("all but systematic samples", {"counts coverage FBS, difference in s.e.": 2.9}, "without systematic samples"),
        ("all but the lognormal density", {"salary coverage FBP, difference in s.e.": 2.0}, "the lognormal density"),
        ("all but the ceiling", {"salary length FBP": 0.96}, "the shortest mean length is 0.96"),
        ("none", {"ratio": 1.45}, "is 1.45 with none of the choices"),
        ("all, and a shift", {"salary coverage FBS, difference in s.e.": -2.5}, "2.5 with a shift"),
        ("all, and a shift", {"counts coverage FBS, difference in s.e.": 2.5}, "counts coverage FBS is off by 2.5"),
    ],
)
def test_a_choice_without_its_part_is_told(choices, changed, told):
    rows = [row | changed if row["choices"] == choices else row for row in pl.read_csv(CHOICES).to_dicts()]
    found = unmet(study_of_paper_choices.criteria(pl.DataFrame(rows)))
    assert len(found) == 1
    assert told in found[0]
