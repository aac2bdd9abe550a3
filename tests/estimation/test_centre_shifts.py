"""Centre shifts: their mean square is a part of the variance of every figure, and only of figures that they change."""

import numpy as np
import polars as pl
import pytest

import svysynth
from svysynth import SurveyError
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.estimation.centre_shifts import CentreShifts
from svysynth.estimation.combining import Synthetic, combine_estimates
from svysynth.estimation.tables import make_table

TOTAL = 5_000
LABELS = (("=F", "old"), ("=F", "young"), ("M", "old"), ("M", "young"))
SHIFTS = CentreShifts(
    LABELS,
    np.array([[0.01, -0.02, 0.03, 0.0], [-0.03, 0.01, 0.02, 0.04], [0.0, 0.05, -0.01, 0.02]]),
    np.array([[0.02, 0.01, -0.03, 0.0], [0.0, 0.04, 0.01, -0.02], [0.03, 0.0, 0.0, 0.01]]),
)
TABLES = [make_table(["sex", "age"], ["count", "mean", "total", "median", "proportion"])]


def frame(seed, outcome="income"):
    """A synthetic file with 12 clusters of 10 records; its outcome has any name that a user may choose."""
    generator = np.random.default_rng(seed)
    size = 120
    weights = np.exp(0.3 * generator.standard_normal((2, size)))
    smoothed, drawn = weights * TOTAL / weights.sum(axis=1, keepdims=True)
    return pl.DataFrame(
        {
            "sex": np.tile(["=F", "M"], size // 2),
            "age": np.tile(["old", "young", "young"], size // 3),
            "region": np.repeat(["east", "west"], size // 2),
            "school": np.repeat(np.arange(12), 10),
            outcome: np.exp(10 + 0.5 * generator.standard_normal(size)),
            "weight": smoothed,
            "weight_unsmoothed": drawn,
        }
    )


def synthetic(shifts=SHIFTS, transform="log", **roles):
    frames = [frame(seed) for seed in (1, 2, 3)]
    shifts = None if shifts is None else shifts.frame(["sex", "age"], "income")
    usual = {"public": ["sex", "age"], "strata": "region", "cluster": "school"}
    return svysynth.read_synthetic(frames, outcome="income", transform=transform, shifts=shifts, **usual | roles)


def by_hand(statistic, transform, where):
    """The mean square of the changes of a figure, averaged over the files, without any code of the package."""
    found = []
    for seed in (1, 2, 3):
        file = frame(seed)
        cell = np.array([LABELS.index(labels) for labels in file.select("sex", "age").iter_rows()])
        income, weight = file["income"].to_numpy(), file["weight"].to_numpy()
        inside = where(cell)

        def figure(y, w, inside=inside):
            w = w * TOTAL / w.sum()
            sums = {"count": w[inside].sum(), "total": (w * y)[inside].sum(), "proportion": w[inside].sum() / w.sum()}
            return (sums | {"mean": (w * y)[inside].sum() / w[inside].sum()})[statistic]

        before = figure(income, weight)
        for a, b in zip(SHIFTS.outcome, SHIFTS.log_weight, strict=True):
            y = income * np.exp(a[cell]) if transform == "log" else income + a[cell]
            found.append((figure(y, weight * np.exp(b[cell])) - before) ** 2)
    return np.mean(found)


@pytest.mark.parametrize("transform", ["log", "identity"])
def test_the_variance_has_the_mean_square_of_the_changes(transform):
    keys = ["statistic", "sex", "age"]
    both = [synthetic(shifts, transform).tabulate_all(TABLES) for shifts in (SHIFTS, None)]
    found = both[0].join(both[1], on=keys, suffix="_without")
    assert (found["estimate"] == found["estimate_without"]).all()
    cases = {("All", "All"): lambda c: c >= 0, ("=F", "All"): lambda c: c < 2, ("M", "young"): lambda c: c == 3}
    for (sex, age), where in cases.items():
        for statistic in ("count", "mean", "total", "proportion"):
            row = found.row(
                by_predicate=(pl.col("sex") == sex) & (pl.col("age") == age) & (pl.col("statistic") == statistic),
                named=True,
            )
            added = row["se"] ** 2 - row["se_without"] ** 2
            expected = by_hand(statistic, transform, where)
            assert added == pytest.approx(expected, rel=1e-6, abs=1e-9 * max(row["se"], 1) ** 2)


def test_what_is_known_without_error_stays_so():
    rows = synthetic().tabulate_all(TABLES).filter(pl.col("sex") == "All", pl.col("age") == "All")
    known = rows.filter(pl.col("statistic").is_in(["count", "proportion"]))
    assert known["se"].to_list() == [0, 0]
    assert rows.filter(pl.col("statistic") == "median")["se"].item() > 0
    totals = {"margins": [{"by": "sex", "totals": {"=F": 2600.0, "M": 2400.0}}], "method": "rake"}
    calibrated = synthetic(calibration=totals).tabulate(["sex", "age"], ["count"]).filter(pl.col("age") == "All")
    assert calibrated["estimate"].round(6).to_list() == [5000, 2600, 2400]
    assert calibrated["se"].to_list() == [0, 0, 0]


def test_the_degrees_of_freedom_are_those_of_three_terms():
    """Satterthwaite: T²/(ū²/d + v²/(m − 1) + s²/k)."""
    estimates, variances, shifted = (
        np.array([[10.0], [13.0], [10.0]]),
        np.array([[1.0], [4.0], [2.0]]),
        np.array([[1.5]] * 3),
    )
    found = combine_estimates(estimates, variances, 0.95, design_df=9.0, shifted=shifted, shifts=8)
    u, v, s = 7 / 3, 1.0, 1.5
    assert found.se[0] ** 2 == pytest.approx(u + v + s, rel=1e-12)
    assert found.df[0] == pytest.approx((u + v + s) ** 2 / (u**2 / 9 + v**2 / 2 + s**2 / 8), rel=1e-12)
    same = combine_estimates(np.full((3, 1), 10.0), variances, 0.95, shifted=shifted, shifts=8)
    assert same.df[0] == pytest.approx((u + s) ** 2 / (s**2 / 8), rel=1e-12)


def test_standard_errors_of_the_paper_have_no_such_part():
    settings = EstimationSpec(standard_errors="paper")
    with_shifts, without = (synthetic(shifts).tabulate_all(TABLES, settings) for shifts in (SHIFTS, None))
    assert with_shifts.equals(without)


def test_shifts_belong_to_their_files():
    """They are found by labels, whatever these are and whatever their order; others are refused."""
    table = SHIFTS.frame(["sex", "age"], "income")
    back = CentreShifts.of_frame(table, ["sex", "age"], "income")
    assert back.labels == LABELS
    assert np.array_equal(back.outcome, SHIFTS.outcome)
    assert len(CentreShifts.of_frame(table.clear(), ["sex", "age"], "income")) == 0
    turned = CentreShifts(LABELS[::-1], SHIFTS.outcome[:, ::-1], SHIFTS.log_weight[:, ::-1])
    assert synthetic(turned).tabulate_all(TABLES).equals(synthetic().tabulate_all(TABLES))
    few = CentreShifts(LABELS[:3], SHIFTS.outcome[:, :3], SHIFTS.log_weight[:, :3])
    with pytest.raises(SurveyError, match="lack a cell"):
        synthetic(few).tabulate_all(TABLES)
    with pytest.raises(SurveyError, match="other columns"):
        CentreShifts.of_frame(table, ["sex"], "income")
    for broken in (table[:-1], table.with_columns(weight=pl.lit(float("nan")))):
        with pytest.raises(SurveyError, match="not complete"):
            CentreShifts.of_frame(broken, ["sex", "age"], "income")


def test_without_shifts_nothing_is_added():
    plain = synthetic(None).tabulate_all(TABLES)
    surveys = synthetic(None).surveys
    assert (
        Synthetic(surveys, shifts=CentreShifts((), np.empty((0, 0)), np.empty((0, 0))))
        .tabulate_all(TABLES)
        .equals(plain)
    )
