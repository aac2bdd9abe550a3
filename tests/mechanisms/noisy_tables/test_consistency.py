"""Consistency: adds up, is unbiased and least noisy, respects bounds, and agrees with slow and independent twins."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import null_space
from scipy.optimize import nnls
from scipy.special import ndtri

from svysynth.mechanisms.noisy_tables import consistency
from svysynth.mechanisms.noisy_tables.consistency import consistent, hierarchy
from svysynth.survey.doctorates import published_table

DRAWS = 1000
FALSE_ALARM = 1e-6
LAPLACE_KURTOSIS = 6
"""Of all linear combinations of independent Laplace variables a single one has the heaviest tails."""


def rows_of(sizes, tables, present=None):
    """The rows of several tables over the crossing of some columns, and each row's level; absent cells are left out."""
    cells = np.array(list(itertools.product(*(range(size) for size in sizes)))).reshape(-1, len(sizes))
    cells = cells if present is None else cells[present]
    levels, level_of_row, first = [], [], 0
    for table in tables:
        for kept in itertools.chain.from_iterable(itertools.combinations(table, k) for k in range(len(table) + 1)):
            shape = [sizes[column] for column in kept]
            row = np.zeros(len(cells), np.int64)
            for column in kept:
                row = row * sizes[column] + cells[:, column]
            levels.append(first + row)
            level_of_row += [len(levels) - 1] * int(np.prod(shape, dtype=int))
            first += int(np.prod(shape, dtype=int))
    return hierarchy(levels, first), np.array(level_of_row)


@st.composite
def measurements(draw, orders=3.0):
    """A hierarchy of one to three columns, with empty cells and tables that share columns, measured with noise."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    columns = range(len(sizes))
    subsets = [c for k in range(len(sizes) + 1) for c in itertools.combinations(columns, k)]
    tables = draw(st.lists(st.sampled_from(subsets), min_size=1, max_size=3))
    count = int(np.prod(sizes))
    present = np.array(draw(st.lists(st.sampled_from([True, True, True, False]), min_size=count, max_size=count)))
    present[draw(st.integers(0, count - 1))] = True
    rows, _ = rows_of(sizes, tables, present)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    variance = 100 * 10 ** generator.uniform(-orders, orders, rows.shape[0])
    truth = generator.lognormal(3, 1, rows.shape[1])
    return rows, rows @ truth + np.sqrt(variance) * generator.standard_normal(rows.shape[0]), variance


def twin(rows, value, variance):
    """Row values by a constrained quadratic program: Σ(u − value)²/variance least, with N·u = 0 for rows to add up.

    The conditions of Karush, Kuhn and Tucker give u = value − D·N'(N·D·N')⁻¹N·value with D the variances.
    """
    constraints = null_space(rows.toarray().T).T
    spread = np.diag(variance)
    multipliers = np.linalg.lstsq(constraints @ spread @ constraints.T, constraints @ value, rcond=None)[0]
    return value - spread @ constraints.T @ multipliers


def exact_twin(rows, value, variance):
    """Cells from the normal equations in rational arithmetic, by elimination; every cell has a row of its own."""
    matrix = [[Fraction(int(entry)) for entry in row] for row in rows.toarray()]
    weight, value = [1 / Fraction(v) for v in variance], [Fraction(v) for v in value]
    size = rows.shape[1]
    system = [
        [sum(w * row[i] * row[j] for w, row in zip(weight, matrix, strict=True)) for j in range(size)]
        + [sum(w * row[i] * v for w, row, v in zip(weight, matrix, value, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        system[i] = [entry / system[i][i] for entry in system[i]]
        for j in range(size):
            if j != i:
                system[j] = [a - system[j][i] * b for a, b in zip(system[j], system[i], strict=True)]
    return np.array([float(row[-1]) for row in system])


def largest(value):
    return np.abs(value).max()


def assert_optimal(rows, value, variance, cells, lower, upper, tolerance):
    """Within the bounds, and no allowed move lowers the sum: together these are enough, the problem being convex."""
    assert (cells >= lower).all()
    assert (cells <= upper).all()
    slope = rows.T @ ((rows @ cells - value) / variance)
    rounding = tolerance * (rows.T @ ((np.abs(value) + rows @ np.abs(cells)) / variance))
    assert (slope >= -rounding)[cells < upper].all()
    assert (slope <= rounding)[cells > lower].all()


# --- one measurement ---


@given(measurements())
@settings(max_examples=60)
def test_rows_are_the_sums_of_their_cells_and_stay_so(measured):
    rows, value, variance = measured
    once = consistent(rows, value, variance)
    assert np.array_equal(once.values, rows @ once.cells)
    again = consistent(rows, once.values, variance)
    assert again.values == pytest.approx(once.values, rel=1e-10, abs=1e-10 * largest(once.values))


@given(measurements(orders=2.0))
@settings(max_examples=60)
def test_least_squares_equal_the_constrained_twin(measured):
    rows, value, variance = measured
    expected = twin(rows, value, variance)
    assert consistent(rows, value, variance).values == pytest.approx(expected, abs=1e-9 * largest(value))


@pytest.mark.parametrize("seed", range(10))
def test_variances_that_differ_by_twelve_orders_of_magnitude_lose_few_digits(seed):
    """By level, and from row to row; about six of sixteen digits would be lost to a ratio of scales of 10⁶."""
    rows, level = rows_of((4, 3), [(0, 1)])
    generator = np.random.default_rng(seed)
    orders = generator.uniform(-6, 6, len(level))
    variance = 10 ** (orders[level] if seed % 2 else orders)
    value = rows @ generator.lognormal(8, 1, 12) + np.sqrt(variance) * generator.standard_normal(len(level))
    exact = exact_twin(rows, value, variance)
    assert consistent(rows, value, variance).cells == pytest.approx(exact, abs=1e-12 * largest(exact))


@given(measurements())
@settings(max_examples=60)
def test_the_variance_is_that_of_the_linear_map_and_never_grows(measured):
    rows, value, variance = measured
    result = consistent(rows, value, variance)
    responses = np.array([consistent(rows, unit, variance).values for unit in np.eye(len(value))])
    assert result.variance == pytest.approx(variance @ responses**2, rel=1e-7, abs=1e-9 * variance.min())
    assert (result.variance <= variance).all()


@given(measurements(), st.sampled_from(["none", "some", "meeting"]), st.booleans())
@settings(max_examples=100)
def test_cells_within_bounds_are_optimal(measured, kind, is_sparse):
    rows, value, variance = measured
    lower = np.zeros(rows.shape[1])
    upper = {"none": np.full(len(lower), np.inf), "some": np.full(len(lower), 15.0)}.get(kind, lower + 15)
    if kind == "meeting":
        upper = np.where(np.arange(len(lower)) % 2, lower, upper)
    with pytest.MonkeyPatch.context() as patch:
        if is_sparse:
            patch.setattr(consistency, "DENSE_ENTRIES", 0)
        result = consistent(rows, value, variance, lower, upper)
    assert np.array_equal(result.values, rows @ result.cells)
    assert_optimal(rows, value, variance, result.cells, lower, upper, 1e-9)


@given(measurements(orders=1.0))
@settings(max_examples=60)
def test_cells_that_are_not_negative_give_the_rows_of_scipy(measured):
    rows, value, variance = measured
    precision = 1 / np.sqrt(variance)
    theirs = rows @ nnls(precision[:, np.newaxis] * rows.toarray(), precision * value)[0]
    ours = consistent(rows, value, variance, np.zeros(rows.shape[1])).values
    assert ours == pytest.approx(theirs, abs=1e-9 * largest(value))


@pytest.mark.parametrize("seed", [5, 7])
def test_cells_that_change_sides_in_turn_still_come_to_rest(seed, monkeypatch):
    """Measurements that contradict the bounds: were all wrong cells to change sides at once, they would never end."""
    rows, level = rows_of((10, 10), [(0, 1)])
    generator = np.random.default_rng(seed)
    variance = 100 * 10 ** generator.uniform(-6, 6, len(level))
    value = rows @ generator.lognormal(3, 1.5, 100) + np.sqrt(variance) * generator.standard_normal(len(level))
    lower, upper = np.zeros(100), np.full(100, 40.0)
    result = consistent(rows, value, variance, lower, upper)
    assert_optimal(rows, value, variance, result.cells, lower, upper, 1e-9)
    monkeypatch.setattr(consistency, "PATIENCE", 500)
    monkeypatch.setattr(consistency, "MOST_ITERATIONS", 400)
    with pytest.raises(ArithmeticError, match="did not converge"):
        consistent(rows, value, variance, lower, upper)


@given(measurements(orders=1.0))
@settings(max_examples=30)
def test_the_sparse_solution_is_the_dense_one(measured):
    rows, value, variance = measured
    dense = consistent(rows, value, variance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consistency, "DENSE_ENTRIES", 0)
        iterated = consistent(rows, value, variance)
    assert iterated.values == pytest.approx(dense.values, abs=1e-9 * largest(value))
    assert np.array_equal(iterated.variance, variance)
    assert (iterated.variance >= dense.variance).all()


def test_a_large_table_is_solved_by_iteration():
    rows, level = rows_of((60, 50, 2), [(0, 1, 2)])
    generator = np.random.default_rng(3)
    variance = 10 ** np.linspace(-6, 6, level.max() + 1)[level]
    truth = generator.lognormal(6, 1, rows.shape[1])
    value = rows @ truth + np.sqrt(variance) * generator.standard_normal(len(level))
    result = consistent(rows, value, variance)
    slope = rows.T @ ((result.values - value) / variance)
    assert largest(slope) <= 1e-9 * largest(rows.T @ (np.abs(value) / variance))
    assert np.array_equal(result.variance, variance)


def test_iteration_that_does_not_converge_is_an_error(monkeypatch):
    rows, level = rows_of((5, 4), [(0, 1)])
    generator = np.random.default_rng(4)
    monkeypatch.setattr(consistency, "DENSE_ENTRIES", 0)
    monkeypatch.setattr(consistency, "MOST_ITERATIONS", 2)
    value, variance = generator.normal(size=len(level)), 10 ** generator.uniform(-6, 6, len(level))
    with pytest.raises(ArithmeticError, match="did not converge"):
        consistent(rows, value, variance)


# --- without noise, without cells, without sense ---


@pytest.mark.parametrize("tables", [[(0, 1)], [(0, 1), (1, 2)], [(0, 1, 2)], [(2,), ()]])
def test_an_infinite_budget_changes_no_bit(tables):
    rows, _ = rows_of((7, 3, 2), tables)
    truth = np.random.default_rng(5).lognormal(6, 1, rows.shape[1])
    value = np.array([sum(reversed(truth[row.indices])) for row in rows])  # margins added up in another order
    result = consistent(rows, value, np.zeros(len(value)), lower=np.zeros(len(truth)))
    assert np.array_equal(result.values, value)
    assert not result.variance.any()
    if (0, 1, 2) in tables:
        assert np.array_equal(result.cells, truth)


def test_rows_that_contradict_each_other_without_noise_are_made_to_add_up():
    rows = hierarchy([np.array([0, 0]), np.array([1, 2])])
    result = consistent(rows, np.array([10.0, 1.0, 3.0]), np.zeros(3))
    assert result.values == pytest.approx([8, 3, 5])
    assert not result.variance.any()


def test_a_row_that_nobody_is_in_is_zero_without_noise():
    rows, _ = rows_of((2, 2), [(0, 1)], present=np.array([True, True, False, False]))
    result = consistent(rows, np.full(9, 4.0), np.ones(9))
    empty = np.asarray(rows.sum(axis=1)).ravel() == 0
    assert empty.sum() == 3
    assert not result.values[empty].any()
    assert not result.variance[empty].any()


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_a_table_of_nothing_is_nothing(shape):
    result = consistent(sparse.csr_matrix(shape), np.ones(shape[0]), np.ones(shape[0]), np.zeros(shape[1]))
    assert not result.values.any()
    assert not result.cells.any()


@pytest.mark.parametrize(
    ("value", "variance", "lower", "upper", "problem"),
    [
        ([1.0, np.nan], [1.0, 1.0], None, None, "finite"),
        ([1.0, 1.0], [1.0, np.inf], None, None, "finite"),
        ([1.0, 1.0], [1.0, 0.0], None, None, "positive"),
        ([1.0, 1.0], [1.0, -1.0], None, None, "positive"),
        ([1.0, 1.0], [1.0, 1.0], [2.0], [1.0], "bound"),
    ],
)
def test_impossible_measurements_are_errors(value, variance, lower, upper, problem):
    with pytest.raises(ValueError, match=problem):
        consistent(hierarchy([np.array([0]), np.array([1])]), np.array(value), np.array(variance), lower, upper)


def test_levels_must_not_share_row_numbers():
    with pytest.raises(ValueError, match="same row numbers"):
        hierarchy([np.array([0, 0]), np.array([0, 1])])


# --- many measurements ---


class Study:
    """Laplace noise on the same rows over and over: raw, after least squares, and after the bounds step too."""

    def __init__(self, sizes, tables, truth, scale_of_level, seed, present=None):
        self.rows, self.level = rows_of(sizes, tables, present)
        self.truth = self.rows @ truth
        scale = np.asarray(scale_of_level, float)[self.level]
        self.variance = 2 * scale**2
        noise = np.random.default_rng(seed).laplace(size=(DRAWS, len(scale))) * scale
        self.raw = self.truth + noise
        free = [consistent(self.rows, value, self.variance) for value in self.raw]
        self.free, self.variance_after = np.array([one.values for one in free]), free[0].variance
        zero = np.zeros(len(truth))
        bounded = [consistent(self.rows, value, self.variance, zero) for value in self.raw]
        self.bounded = np.array([one.values for one in bounded])
        self.clipped = np.mean([one.cells == 0 for one in bounded])

    def squared_errors(self, estimates):
        """Mean squared error of every level."""
        squares = np.square(estimates - self.truth).mean(axis=0)
        return np.bincount(self.level, squares) / np.bincount(self.level)


def doctorate_counts():
    """The 16 inner counts of the paper's application."""
    published = published_table("sdr_counts")
    return published.filter((published["field"] != "All") & (published["gender"] != "All"))[
        "sample_estimate"
    ].to_numpy()


def make_studies():
    generator = np.random.default_rng(6)
    yield "one-way", ((12,), [(0,)], generator.lognormal(3, 1, 12), [10, 10])
    yield "two-way", ((8, 2), [(0, 1)], doctorate_counts(), [1500, 1500, 1500, 1500])
    yield "unequal scales", ((8, 2), [(0, 1)], doctorate_counts(), [3000, 1000, 2000, 800])
    yield "three-way", ((4, 3, 2), [(0, 1, 2)], generator.lognormal(4, 0.5, 24), [20] * 8)
    yield "shared columns", ((4, 3, 2), [(0, 1), (1, 2)], generator.lognormal(4, 0.5, 24), [40] * 8)
    empty = np.arange(24) % 5 > 0
    yield "empty cells", ((4, 6), [(0, 1)], generator.lognormal(4, 0.5, int(empty.sum())), [20] * 4, empty)


@pytest.fixture(scope="module", params=list(make_studies()), ids=lambda named: named[0])
def study(request):
    sizes, tables, truth, scales, *present = request.param[1]
    return Study(sizes, tables, truth, scales, 7, *present)


def standard_errors(tests):
    """How many standard errors a mean may be off in one of so many two-sided tests."""
    return -ndtri(FALSE_ALARM / (2 * tests))


def test_least_squares_are_unbiased(study):
    off = study.free.mean(axis=0) - study.truth
    allowed = standard_errors(len(off)) * np.sqrt(study.variance_after / DRAWS)
    assert (np.abs(off) <= allowed + 1e-9 * study.truth).all()


def test_the_variance_is_that_of_many_draws(study):
    seen = np.square(study.free - study.truth).mean(axis=0)
    allowed = standard_errors(len(seen)) * np.sqrt((LAPLACE_KURTOSIS - 1) / DRAWS)
    assert seen == pytest.approx(study.variance_after, rel=allowed, abs=1e-9)
    assert (study.variance_after <= study.variance).all()


def test_every_level_has_less_error_than_the_raw_mechanism(study):
    raw, free, bounded = (study.squared_errors(e) for e in (study.raw, study.free, study.bounded))
    assert study.clipped > 0.005
    assert (free < raw).all()
    assert (bounded < raw).all()
