"""What is computed from disk, beside the same from memory."""

import numpy as np
import pytest

from svysynth.cli.main import main
from svysynth.survey import large_files


def same(one, other, tolerance=0.0):
    """Clusters have other numbers on disk, so that their sums are added up in another order."""
    for name in one.columns:
        if one[name].dtype.is_float() and tolerance:
            pairs = (column[name].cast(float).to_numpy() for column in (one, other))
            np.testing.assert_allclose(*pairs, rtol=tolerance, atol=1e-12, err_msg=name)
        else:
            assert one[name].to_list() == other[name].to_list(), name


def assert_the_command_gives_the_same(text, folder, monkeypatch):
    """`svysynth tables` with a spec, when the file counts as small and when it counts as large."""
    (folder / "s.toml").write_text(text)
    _tables(folder, "memory.csv")
    monkeypatch.setattr(large_files, "MOST_IN_MEMORY", 1000)
    monkeypatch.setattr(large_files, "survey_from_file", None)
    _tables(folder, "disk.csv")
    assert (folder / "disk.csv").read_bytes() == (folder / "memory.csv").read_bytes()


def _tables(folder, out):
    with pytest.raises(SystemExit) as left:
        main(["tables", str(folder / "s.toml"), "--out", str(folder / out)])
    assert left.value.code == 0
