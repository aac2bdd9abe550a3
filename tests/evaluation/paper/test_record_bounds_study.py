"""The page of bench/study_of_record_bounds.py, from made-up numbers and from the committed ones."""

import numpy as np
import pytest

import study_of_record_bounds as study
from criteria import unmet
from places import DOCS

UNWEIGHTED = {"FBS": np.array([7.38, 7.91, 8.54, 9.58, 10.40]), "FBP": np.array([8.11, 8.68, 9.50, 10.40, 11.60])}
"""As committed."""
CALIBRATED = {
    ("FBS", 1.8): [(1.78, 2), (1.8, 7)],
    ("FBS", 3.4): [(3.35, 1), (3.4, 3)],
    ("FBP", 1.8): [(1.77, 2), (1.79, 8)],
    ("FBP", 3.4): [(3.39, 1), (3.4, 3)],
}
COMMITTED = (DOCS / "studies.md").read_text(encoding="utf-8").splitlines()


def test_a_page_is_written_and_judged(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "unweighted_bounds", lambda count: UNWEIGHTED)
    monkeypatch.setattr(study, "calibrations", lambda count: CALIBRATED)
    arguments = ["--samples", "200", "--calibrated", "50", "--out", str(tmp_path / "docs")]
    assert study.main(arguments) == 0
    written = (tmp_path / "docs/studies.md").read_text(encoding="utf-8").splitlines()
    different = [line for line, other in zip(written, COMMITTED, strict=True) if line != other]
    assert different == [
        "| FBS | 1.8 | 50 | 1.11% | 4.50 | 7 |",
        "| FBS | 3.4 | 50 | 1.47% | 2.00 | 3 |",
        "| FBP | 1.8 | 50 | 1.67% | 5.00 | 8 |",
        "| FBP | 3.4 | 50 | 0.29% | 2.00 | 3 |",
    ]
    monkeypatch.setattr(study, "unweighted_bounds", lambda count: UNWEIGHTED | {"FBP": UNWEIGHTED["FBP"] + 2})
    assert study.main(arguments) == 1
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "A criterion is not met: FBP: the median of the unweighted Δ is 11.50, not 8.7 to 10.5",
        "A criterion is not met: FBP: the paper's Δ, 9.92, is not between the quantiles, 10.11 and 13.60",
    ]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((1.81, 2), "ended above its target"),
        ((1.75, 2), "ended 2.78% below its target"),
        ((1.79, 9), "took 9 refits"),
        ((float("nan"), 2), "above its target"),
    ],
)
def test_a_calibration_that_fails_is_told(found, told):
    assert told in unmet(study.criteria_of_calibrations(CALIBRATED | {("FBS", 1.8): [found, (1.79, 1)]}))[0]
