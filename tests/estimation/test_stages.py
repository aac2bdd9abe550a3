"""Tables of several stages of sampling agree with R `survey` (`golden/stages/make.R`), and so do averaged strata."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import places
import svysynth
from golden_survey import GOLDEN as DESIGNS
from golden_survey import STATISTICS, assert_agrees, find, read_golden_survey
from svysynth.core.spec.whole import parse_spec

GOLDEN = places.GOLDEN / "stages"
VALUES = pl.read_csv(GOLDEN / "values.csv").with_columns(pl.col("domain").fill_null(""))
CASES = VALUES.select("design", "lonely", "domain").unique(maintain_order=True).rows()
ROLES = {
    "strata": ("stratum", "part"),
    "cluster": ("psu", "ssu"),
    "fpc": ("fpc", "fpc1", "fpc2", "fpc3"),
}


def read(design, domain="", **changes):
    path = find(design, GOLDEN, DESIGNS)
    columns = pl.read_csv(path, n_rows=0).columns
    roles = {role: [name for name in names if name in columns] or None for role, names in ROLES.items()} | changes
    return read_golden_survey(path, domain=domain or None, **roles)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("design", "lonely", "domain"), CASES)
def test_estimates_and_standard_errors_are_r_s(design, lonely, domain, statistic):
    theirs = VALUES.filter(design=design, lonely=lonely, domain=domain, statistic=statistic)
    estimation = svysynth.EstimationSpec(lonely=lonely)
    ours = svysynth.tabulate(read(design, domain), ["a", "b"], [statistic], estimation)
    unknown = theirs.filter(pl.col("estimate").is_not_null() & pl.col("se").is_null()).select("a", "b")
    assert ours.join(unknown, on=["a", "b"])["se"].is_null().all()  # a stratum of one unit, and no other to average
    assert_agrees(*(table.join(unknown, on=["a", "b"], how="anti") for table in (ours, theirs)))
    both = ours.join(theirs, on=["a", "b"], suffix="_r")
    assert both["df"].to_list() == both["df_r"].to_list()


def test_the_textbook_total_of_two_stages():
    """Särndal, Swensson and Wretman's municipalities, as the help page of R's `svydesign` has them."""
    (row,) = svysynth.tabulate(read("mu284"), [], "total").rows(named=True)
    assert (round(row["estimate"]), round(row["se"], 1)) == (15080, 2274.3)


def test_the_records_are_the_last_stage_with_or_without_a_column_of_their_own():
    named, unnamed = read("apiclus2"), read("apiclus2", cluster="psu", fpc=["fpc1", "fpc2"])
    first, second = (svysynth.tabulate(survey, ["a", "b"], STATISTICS) for survey in (named, unnamed))
    assert first["se"].drop_nulls().to_list() == pytest.approx(second["se"].drop_nulls().to_list(), rel=1e-12)


def test_without_finite_populations_the_first_stage_is_all():
    survey = read("three_stages", fpc=None)
    assert_frame_equal(
        svysynth.tabulate(survey, "a", STATISTICS),
        svysynth.tabulate(read("three_stages", fpc=None, cluster="psu"), "a", STATISTICS),
    )
    replicated = svysynth.tabulate(survey, "a", "count", svysynth.EstimationSpec(variance="jackknife"))
    assert replicated["se"].is_not_null().all()


def test_a_later_stage_adds_to_the_variance():
    one = svysynth.tabulate(read("apiclus2", fpc="fpc1", cluster="psu"), "a", "total")
    two = svysynth.tabulate(read("apiclus2"), "a", "total")
    assert (two["se"] > one["se"]).all()


@pytest.mark.parametrize("variance", ["preston", "jackknife", "bootstrap", "brr"])
def test_replicates_refuse_later_stages(variance):
    with pytest.raises(svysynth.SurveyError, match="has no variance for later stages"):
        svysynth.tabulate(read("apiclus2"), "a", "count", svysynth.EstimationSpec(variance=variance))


def test_lonely_units_of_a_later_stage_are_refused_without_a_policy():
    with pytest.raises(svysynth.SurveyError, match="1 of 3 strata has only one cluster at stage 1"):
        svysynth.tabulate(read("lonely_by_stage"), "a")
    frame = pl.read_csv(GOLDEN / "apiclus2.csv").with_columns(pl.col("fpc2") + 1)
    roles = {"cluster": ["psu", "ssu"], "fpc": ["fpc1", "fpc2"], "public": ["a", "b"]}
    survey = svysynth.read_survey(frame, outcome="y", weight="w", **roles)
    with pytest.raises(svysynth.SurveyError, match="strata have only one cluster at stage 2"):
        svysynth.tabulate(survey, "a")
    with pytest.raises(svysynth.SurveyError, match="has no other stratum to average"):
        svysynth.tabulate(survey, "a", estimation=svysynth.EstimationSpec(lonely="average"))
    adjusted = svysynth.tabulate(survey, "a", estimation=svysynth.EstimationSpec(lonely="adjust"))
    certain = svysynth.tabulate(survey, "a", estimation=svysynth.EstimationSpec(lonely="certainty"))
    assert (adjusted["se"] > certain["se"]).any()
    assert (adjusted["se"] >= certain["se"]).all()


@pytest.mark.parametrize(
    ("roles", "problem"),
    [
        ({"fpc": ["fpc1"], "cluster": ["psu", "ssu"]}, "'fpc' has to have a column for each stage"),
        ({"fpc": ["fpc1", "fpc2", "fpc3"], "cluster": "psu"}, "'cluster' has no column for stage 2"),
        ({"fpc": ["fpc1", "fpc2"], "cluster": None}, "'cluster' has no column for the first stage"),
        ({"cluster": ["psu", "psu"]}, "cluster"),
        ({"cluster": ["psu", "w"]}, "'cluster' names a column that is also the outcome, the weight or the fpc"),
        ({"fpc": []}, "'fpc' is an empty list"),
        ({"cluster": ["psu", 3]}, "should be a valid string"),
        ({"fpc": ["fpc1", "fpc3"], "cluster": ["psu", "ssu"]}, "varies within a stratum of a unit of stage 1"),
        (
            {"fpc": ["fpc1", "small"], "cluster": ["psu", "ssu"]},
            "strata of a unit of stage 1 have a population smaller",
        ),
    ],
)
def test_stages_that_do_not_fit_together_are_refused(roles, problem):
    frame = pl.read_csv(GOLDEN / "three_stages.csv").with_columns(small=pl.lit(1.0))
    settings = {"outcome": "y", "weight": "w", "public": ["a", "b"], "strata": "stratum"}
    with pytest.raises(svysynth.SurveyError, match=problem):
        svysynth.read_survey(frame, **settings | roles)


def test_a_spec_writes_stages_as_lists_or_as_tables():
    text = '[survey]\ndata = "x.csv"\noutcome = "y"\nweight = "w"\npublic = "a"\n'
    lists = parse_spec(text + 'cluster = ["psu", "ssu"]\nfpc = ["fpc1", "fpc2"]\n')
    tables = parse_spec(text + 'cluster = "psu"\nfpc = "fpc1"\n[[survey.later]]\ncluster = "ssu"\nfpc = "fpc2"\n')
    assert lists == tables
    assert (lists.survey.clusters, lists.survey.fpcs) == (("psu", "ssu"), ("fpc1", "fpc2"))


@pytest.mark.parametrize("statistic", STATISTICS)
def test_calibrated_weights_of_two_stages_are_r_s(statistic):
    margins = [
        {"by": "a", "totals": {"E": 4421, "H": 755, "M": 1018}},
        {"by": "b", "totals": {"No": 2027, "Yes": 4167}},
    ]
    survey = read("apiclus2", calibration={"method": "rake", "margins": margins})
    theirs = pl.read_csv(GOLDEN / "calibrated.csv").filter(statistic=statistic)
    assert_agrees(svysynth.tabulate(survey, ["a", "b"], [statistic]), theirs)
