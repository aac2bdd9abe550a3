"""The one error: what stands behind it is for developers."""

import logging

import pytest

import svysynth
from svysynth import SurveyError
from svysynth.cli.main import main

ROLES = {"outcome": "salary", "weight": "weight", "public": ["field"]}


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 is not all there is")
    return path


def test_a_hidden_cause_is_logged_for_developers_and_for_nobody_else(broken, monkeypatch, caplog):
    for debug in ("", "1"):
        monkeypatch.setenv("SVYSYNTH_DEBUG", debug)
        caplog.clear()
        with caplog.at_level(logging.DEBUG), pytest.raises(SurveyError):
            svysynth.read_survey(broken, **ROLES)
        logged = [record for record in caplog.records if record.name == "svysynth"]
        assert bool(logged) == bool(debug)
    assert any("polars" in str(record.exc_info[0]) for record in logged)


@pytest.mark.parametrize("debug", ["", "1"])
def test_the_command_line_shows_a_hidden_cause_to_developers_only(broken, tmp_path, monkeypatch, capfd, debug):
    monkeypatch.setenv("SVYSYNTH_DEBUG", debug)
    monkeypatch.setattr(logging.getLogger("svysynth"), "propagate", False)  # past the logs of the test itself
    text = f"[survey]\ndata = '{broken}'\noutcome = 'y'\nweight = 'w'\npublic = ['g']\n"
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(SystemExit) as caught:
        main(["check", str(tmp_path / "s.toml")])
    assert caught.value.code == 1
    shown = capfd.readouterr().err
    assert "is not a Parquet file" in shown
    assert ("polars.exceptions" in shown) == bool(debug)
