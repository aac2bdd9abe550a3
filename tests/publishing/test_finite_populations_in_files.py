"""Finite population corrections in releases by models: files and manifest have them, and tables use them."""

import json

import polars as pl
import pytest

from quick_release import SPEC, make_release
from svysynth.core.errors import SurveyError
from svysynth.publishing.verification import verify_release

FPC = 'fpc = "households"\nfpc_public = true'
WITH_FPC = SPEC.replace('strata = "region"', f'strata = "region"\n{FPC}')


def tables_of(folder):
    return pl.read_csv(folder / "release/public/tables.csv")


def test_files_have_the_correction_and_tables_use_it(tmp_path):
    corrected, plain = make_release(tmp_path / "one", WITH_FPC), make_release(tmp_path / "two", SPEC)
    verify_release(corrected / "release", corrected / "ledger.sqlite")
    manifest = json.loads((corrected / "release/public/manifest.json").read_text())
    assert manifest["survey"]["fpc"] == "households"
    assert "households" in manifest["guarantee"]["public"]
    file = pl.read_csv(corrected / "release/public/microdata-1.csv")
    assert file["households"].unique().to_list() == [100]
    ours, theirs = tables_of(corrected), tables_of(plain)
    assert ours["estimate"].to_list() == theirs["estimate"].to_list()
    errors = theirs["se"] > 0
    assert (ours["se"].filter(errors) < theirs["se"].filter(errors)).all()


def test_a_changed_correction_is_noticed(tmp_path):
    folder = make_release(tmp_path / "one", WITH_FPC)
    path = folder / "release/public/manifest.json"
    path.write_text(path.read_text().replace('"fpc": "households"', '"fpc": null'))
    with pytest.raises(SurveyError):
        verify_release(folder / "release", folder / "ledger.sqlite")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WITH_FPC.replace("fpc_public = true", ""), "the finite population correction is not declared public"),
        (SPEC.replace('strata = "region"', 'strata = "region"\nfpc_public = true'), "there is no 'fpc'"),
        (WITH_FPC.replace("[[tables]]", '[model]\nsmoothing = "paper"\n\n[[tables]]', 1), "treats the sample as one"),
        (WITH_FPC.replace("[[tables]]", '[estimation]\nvariance = "brr"\n\n[[tables]]', 1), "has no finite population"),
    ],
)
def test_what_is_not_declared_or_cannot_be_used_is_refused_before_the_charge(tmp_path, text, problem):
    with pytest.raises(SurveyError, match=problem):
        make_release(tmp_path / "one", text)
    assert not (tmp_path / "one/release").exists()
