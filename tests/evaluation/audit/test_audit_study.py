"""The program of the long audits, in small: bench/study_of_audits.py."""

import polars as pl
import pytest

from criteria import unmet
from places import DOCS
from study_of_audits import REVIEW, criteria, main
from svysynth.evaluation.audit import neighbours

EXACT = pl.DataFrame(
    {
        "guarantee": [
            "global",
            "global, tables of clusters",
            "global, noisy sums",
            "global, whole clusters",
            "global, clusters, public weights",
            "asymptotic",
        ],
        "neighbours": "natural",
        "relation": "changed",
        "claim": [1.0, 1.0, 1.0, 1.0, 1.0, 7.2],
        "holds": [True, True, True, True, True, None],
    }
)
SAMPLED = pl.DataFrame(
    {"mechanism": "laplace", "attack": "white box", "claim": [0.5], "lower bound": [0.4], "holds": [True]}
)


def test_the_page_is_the_committed_one_with_other_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "NOISY", 2000)
    assert main(["--pairs", "20", "--runs", "2", "--out", str(tmp_path)]) == 0
    committed = (DOCS / "audit.md").read_text(encoding="utf-8").splitlines()
    written = (tmp_path / "audit.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in committed if line.startswith(("#", "`make study`"))] == [
        line for line in written if line.startswith(("#", "`make study`"))
    ]
    assert committed[committed.index(REVIEW) :] == written[written.index(REVIEW) :]
    assert len(written) == len(committed)


@pytest.mark.parametrize(
    ("exact", "sampled", "told"),
    [
        (EXACT, SAMPLED, []),
        (
            EXACT.with_columns(holds=pl.Series([True, True, False, True, True, None])),
            SAMPLED,
            ["noisy sums, natural neighbours, changed"],
        ),
        (EXACT[:1], SAMPLED, ["1 guarantees are judged exactly, not 5"]),
        (EXACT, SAMPLED.with_columns(holds=pl.lit(False)), ["laplace, white box: the lower bound 0.400 exceeds"]),
    ],
)
def test_a_claim_that_does_not_hold_is_told(exact, sampled, told):
    found = unmet(criteria(exact, sampled))
    assert len(found) == len(told)
    assert all(words in text for words, text in zip(told, found, strict=True))
