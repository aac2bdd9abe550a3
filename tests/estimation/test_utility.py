"""Measures of utility: exact values on small cases, and what must hold on all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svysynth.estimation import utility

values = st.floats(-1e6, 1e6)
positive = st.floats(1e-6, 1e6)


def test_bias_and_rmse():
    estimate, se, truth = np.array([11.0, 7.0]), np.array([0.0, 4.0]), np.array([10.0, 10.0])
    assert utility.bias(estimate, truth).tolist() == [1.0, -3.0]
    assert utility.rmse(estimate, se, truth).tolist() == [1.0, 5.0]


def test_the_ratio_is_to_the_sample_s_own_error():
    ratio = utility.rmse_ratio(np.array([13.0]), np.array([4.0]), np.array([10.0]), np.array([2.5]), np.array([10.0]))
    assert ratio.tolist() == [2.0]


def test_intervals_cover_their_ends():
    lower, upper = np.array([[0.0, 5.0], [1.0, 0.0], [-1.0, 0.0]]), np.array([[1.0, 6.0], [2.0, 5.0], [0.5, 4.9]])
    truth = np.array([1.0, 5.0])
    assert utility.covers(lower, upper, truth).tolist() == [[True, True], [True, True], [False, False]]


def test_an_interval_that_is_not_there_covers_nothing():
    assert not utility.covers(np.array(np.nan), np.array(np.nan), np.array(0.0))


def test_coefficient_of_variation():
    cv = utility.coefficient_of_variation(np.array([-10.0, 0.0]), np.array([2.0, 1.0]))
    assert cv[0] == 0.2
    assert np.isnan(cv[1])


@given(values, positive, values, positive)
def test_overlap_is_symmetric_and_between_0_and_1(low, length, other_low, other_length):
    ends = [np.array(x) for x in (low, low + length, other_low, other_low + other_length)]
    overlap = utility.interval_overlap(*ends)
    assert 0 <= overlap <= 1 + 1e-9
    assert overlap == utility.interval_overlap(*ends[2:], *ends[:2])
    assert utility.interval_overlap(*ends[:2], *ends[:2]) == pytest.approx(1)
    assert (overlap == 0) == (ends[1] <= ends[2] or ends[3] <= ends[0])


@given(values, positive, values, values)
def test_rmse_is_at_least_the_bias_and_the_error(estimate, se, truth, shift):
    found = utility.rmse(np.array(estimate), np.array(se), np.array(truth))
    assert found >= abs(estimate - truth) * (1 - 1e-12)
    assert found >= se * (1 - 1e-12)
    moved = utility.rmse(np.array(estimate + shift), np.array(se), np.array(truth + shift))
    assert moved == pytest.approx(found, rel=1e-6, abs=1e-6)
