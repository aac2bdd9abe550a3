"""What docs/reproduction.md says of the committed results; `make study` measures what each choice of theirs does."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy import stats

from places import DOCS
from svysynth.estimation.utility import covers
from svysynth.evaluation.paper.comparison import PAPER_REPLICATES
from svysynth.evaluation.paper.methods import Plan, Scenario
from svysynth.evaluation.paper.repeated import AS_PUBLISHED, Results, Simulation, rmse_ratios
from svysynth.evaluation.paper.study import REPLICATES as REPLICATES_FOLDER
from svysynth.evaluation.paper.study import simulation_frames
from svysynth.evaluation.paper.workers import load_replicates
from svysynth.survey.doctorates import published_table

CHOICES = DOCS / "published/choices.csv"
REPLICATES = 200
POPULATIONS = DOCS / "published/populations.csv"
LENGTHS = DOCS / "published/populations-lengths.csv"


def as_published(systematic=True, **choices):
    return replace(AS_PUBLISHED, systematic=systematic, plan=replace(AS_PUBLISHED.plan, **choices))


VARIANTS = {
    "none, x with an intercept": Simulation(Plan(intercept=True)),
    "none": Simulation(),
    "all but systematic samples": as_published(systematic=False),
    "all but the lognormal density": as_published(lognormal=False),
    "all but the ceiling": as_published(ceiling=1.0),
    "all": AS_PUBLISHED,
    "all, and a shift": as_published(ceiling=0.8, shift=0.05),
}


@pytest.fixture(params=["simulation", "published"])
def committed(request):
    """A committed run: by the studies' own definitions, and as published."""
    return lambda name: pl.read_csv(DOCS / request.param / f"{name}.csv")


def coverages(comparison):
    return comparison.filter(pl.col("column").str.ends_with("coverage"))


def length_ratios(comparison):
    """Mean length over 24 cells, ours over the paper's, by table and model."""
    lengths = comparison.filter(pl.col("column").str.ends_with("length"))
    by = pl.col("section").str.extract("^(Counts|Average salary)").alias("table"), "column"
    return lengths.group_by(*by).agg((pl.col("here").sum() / pl.col("paper").sum()).alias("ratio"))


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


def share_of_samples_where_fbp_is_better(results):
    """By the median RMSE ratio of the 27 mean salaries, m = 3."""
    better = []
    for index in range(REPLICATES):
        salary = rmse_ratios(results, index).filter(statistic="mean", datasets=3).fill_nan(None)
        middle = {method: group["rmse_ratio"].median() for (method,), group in salary.group_by("method")}
        better.append(middle["fbp"] < middle["fbs"])
    return float(np.mean(better))


def differences_of_mean_coverage(results):
    """Ours less the paper's, over 24 cells, in standard errors that know that the cells of a sample go together."""
    truth = results.truth["truth"].to_numpy()
    found = {}
    for statistic, table in (("count", "counts"), ("mean", "salary")):
        cells, paper = results.rows(statistic), published_table(f"coverage_{table}_m3")
        for method in ("fbs", "fbp"):
            place = results.position(Scenario(method, 1.8, 3))
            middle, half = results.estimate[:, place], results.length[:, place] / 2
            covered = np.where(np.isfinite(half), covers(middle - half, middle + half, truth), np.nan)
            share = np.nanmean(covered[:, cells], axis=1)
            error = share.std(ddof=1) * np.sqrt(1 / len(share) + 1 / PAPER_REPLICATES)
            difference = (share.mean() - paper[f"{method}_coverage"].mean()) / error
            found[f"{table} coverage {method.upper()}, difference in s.e."] = difference
    return found


def assert_each_choice_has_its_part(found):
    """The samples in FBS's counts, the density in FBP's salaries, the ceiling in the lengths; then x, and the shift."""
    rows = {row["choices"]: row for row in found.iter_rows(named=True)}
    lengths = {name: [row[key] for key in row if "length" in key] for name, row in rows.items()}
    differs = {
        name: {key[: key.index(",")]: abs(row[key]) for key in row if key.endswith("s.e.")}
        for name, row in rows.items()
    }
    everything = differs["all"]
    assert rows["all"]["agree"] >= 0.9 * 96
    assert max(abs(length - 1) for length in lengths["all"]) < 0.03
    assert everything["counts coverage FBS"] < 3 < differs["all but systematic samples"]["counts coverage FBS"]
    assert everything["salary coverage FBP"] < 3 < differs["all but the lognormal density"]["salary coverage FBP"]
    assert min(lengths["all but the ceiling"]) < 0.95
    assert abs(rows["none"]["ratio"] - 1.38) < 0.06 < abs(rows["none, x with an intercept"]["ratio"] - 1.38)
    shifted = differs["all, and a shift"]
    assert shifted["salary coverage FBS"] < 2 < 3 < everything["salary coverage FBS"]
    assert shifted["counts coverage FBS"] < 2
    assert max(abs(length - 1) for length in lengths["all, and a shift"]) < 0.03


def test_each_choice_has_its_part():
    assert_each_choice_has_its_part(pl.read_csv(CHOICES))


@pytest.mark.study
def test_what_each_choice_does(tmp_path):
    """Every choice left out in turn, at Δ 1.8: in how many coverages and by how much lengths differ from the paper."""
    rows = []
    for name, study in VARIANTS.items():
        short = replace(study, plan=replace(study.plan, bounds=(1.8,)))
        frames = simulation_frames(short, tmp_path / name, REPLICATES, None, lambda *_: None)
        compared = coverages(frames["comparison"])
        lengths = {
            f"{table.split()[-1].lower()} length {column[:3]}": ratio
            for table, column, ratio in length_ratios(frames["comparison"]).sort("table", "column").iter_rows()
        }
        ratio = frames["length-ratios"].filter(method="fbp", statistic="count", datasets=3)["ratio"].item()
        cells = compared.with_columns(
            kind=pl.col("section").str.extract("(Counts|salary)").str.to_lowercase(),
            place=pl.when(pl.col("row").str.contains(",")).then(pl.lit("inner")).otherwise(pl.lit("fields")),
        )
        means = {
            f"{kind} coverage {column[:3]}, {place}": share
            for kind, column, place, share in cells.group_by("kind", "column", "place", maintain_order=True)
            .agg(pl.col("here").mean())
            .iter_rows()
        }
        agree = int((compared["difference"].abs() <= 3).sum())
        results = Results.of(short, load_replicates(tmp_path / name / REPLICATES_FOLDER, range(REPLICATES)))
        better = share_of_samples_where_fbp_is_better(results)
        row = {"choices": name, "replicates": REPLICATES, "agree": agree, "ratio": ratio, "fbp better": better}
        rows.append(row | lengths | means | differences_of_mean_coverage(results))
    found = pl.DataFrame(rows).with_columns(pl.selectors.float().round(3))
    found.write_csv(CHOICES)
    assert_each_choice_has_its_part(found)


def assert_the_paper_s_may_be_one_of_these_populations(found):
    """By Student's t, with which eight populations say where a ninth may be, at the level of 3 standard errors."""
    for table in ("counts", "salary"):
        for method in ("FBS", "FBP"):
            here, paper = found[f"{table} coverage {method}"], published_table(f"coverage_{table}_m3")
            error = here.std() * np.sqrt(1 + 1 / len(here))
            off = (here.mean() - paper[f"{method.lower()}_coverage"].mean()) / error
            assert stats.t.sf(abs(off), len(here) - 1) > stats.norm.sf(3)
    assert found["Field 7, male"].min() < 0.6 < 0.7 < found["Field 7, male"].max()


def test_the_paper_s_may_be_one_of_these_populations():
    assert_the_paper_s_may_be_one_of_these_populations(pl.read_csv(POPULATIONS))


def test_one_length_of_96_is_beyond_what_populations_spread():
    cells = pl.read_csv(LENGTHS)
    off = (cells["mean"] - cells["paper"]) / (cells["spread"] * np.sqrt(1 + 1 / 8))
    chance = 2 * stats.t.sf(off.abs().to_numpy(), 7)
    assert cells.height == 96
    assert cells.filter(chance < 2 * stats.norm.sf(3))["row"].to_list() == ["Field 7, male"]
    assert (chance < 0.05).sum() == 22


@pytest.mark.study
def test_what_another_population_does(tmp_path):
    """The paper drew one population, and so do we: as published in eight others, with the paper's R."""
    rows, lengths = [], []
    for seed in range(1, 9):
        study = replace(AS_PUBLISHED, seed=seed, plan=replace(AS_PUBLISHED.plan, bounds=(1.8,)))
        frames = simulation_frames(study, tmp_path / str(seed), PAPER_REPLICATES, None, lambda *_: None)
        found = coverages(frames["comparison"]).with_columns(
            table=pl.col("section").str.extract("(Counts|salary)").str.to_lowercase(),
            method=pl.col("column").str.head(3),
        )
        means = found.group_by("table", "method", maintain_order=True).agg(pl.col("here").mean())
        columns = {f"{table} coverage {method}": share for table, method, share in means.iter_rows()}
        fbp = found.filter(
            pl.col("row").is_in(["Field 2, male", "Field 7", "Field 7, male"]), table="counts", method="FBP"
        )
        rows.append(
            {"seed": seed, "replicates": PAPER_REPLICATES} | columns | dict(fbp.select("row", "here").iter_rows())
        )
        lengths.append(frames["comparison"].filter(pl.col("column").str.ends_with("length")))
    cells = pl.concat(lengths).group_by("section", "row", "column", maintain_order=True)
    cells.agg(
        pl.first("paper"), mean=pl.mean("here").round(1), spread=pl.std("here").round(1), populations=pl.len()
    ).write_csv(LENGTHS)
    populations = pl.DataFrame(rows).with_columns(pl.selectors.float().round(4))
    populations.write_csv(POPULATIONS)
    assert_the_paper_s_may_be_one_of_these_populations(populations)
