"""What a notebook shows of an object: public things, escaped, and whether anything was charged for it."""

import re
from html.parser import HTMLParser

import polars as pl
import pytest

import svysynth
from svysynth.core.notebook import MOST_ROWS, card, html_table
from test_safe_repr import digits_of, reachable

HOSTILE = "<script>alert('x')</script>"
SPEC = """
[survey]
data = "people.csv"
outcome = "income"
weight = "weight"
public = ["region", "sex"]
strata = "region"
transform = "identity"
population_total = 10000

[privacy]
mechanism = "laplace"
guarantee = "global"
epsilon = 2.0
budget = "people"
bounds = { outcome = [0, 1000], weight = [1, 100] }

[about]
title = "Incomes <b>2020</b>"

[[tables]]
by = ["region", "sex"]
statistics = ["count", "mean"]
"""
LEGAL = {"div", "p", "table", "caption", "thead", "tbody", "tr", "th", "td"}


class Checked(HTMLParser):
    """Every element is one of ours and is closed in order; keeps the text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text = [], ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in LEGAL
        assert {name for name, _ in attrs} <= {"style", "scope"}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def shown(thing):
    """The text that a notebook shows."""
    return Checked(thing._repr_html_()).text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("notebook")
    numbers = pl.int_range(pl.len())
    frame = pl.select(pl.int_range(600).alias("row")).with_columns(
        income=123.456 + numbers % 97,
        weight=12.3456 + numbers % 7,
        region=pl.when(numbers % 3 == 0).then(pl.lit(HOSTILE)).otherwise(pl.lit("south & west")),
        sex=pl.when(numbers % 2 == 0).then(pl.lit("f")).otherwise(pl.lit("m")),
    )
    frame.drop("row").write_csv(place / "people.csv")
    (place / "people.toml").write_text(SPEC, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def opened(folder):
    return svysynth.open_budget(folder / "ledger.sqlite", "people", 20, "differential privacy")


@pytest.fixture(scope="module")
def released(folder, opened):
    return svysynth.release(folder / "people.toml", folder / "release")


@pytest.fixture(scope="module")
def survey(folder):
    return svysynth.read_survey(
        pl.read_csv(folder / "people.csv").rename({"sex": HOSTILE}),
        outcome="income",
        weight="weight",
        public=["region", HOSTILE],
        population_total=10_000,
    )


def test_a_survey_shows_sizes_and_roles_and_no_value(survey):
    text = shown(survey)
    for part in ("Confidential", "600", "income", "weight", f"region (2 levels), {HOSTILE} (2 levels)"):
        assert part in text
    assert "south" not in text
    seen = {}
    reachable(survey, seen)
    values = digits_of(list(seen.values()))
    assert "123.45" in values
    assert not {number[:6] for number in re.findall(r"[0-9.]{6,}", text)} & values


def test_a_release_shows_its_promise_its_charge_and_its_tables(released):
    text = shown(released)
    assert "Release: Incomes <b>2020</b>" in text
    assert "ε = 2 (differential privacy), entry 2 of the ledger" in text
    assert released.guarantee.sentences()[0] in text
    assert f"{released.tables['estimate'][0]:,.0f}" in text
    assert HOSTILE in text
    assert "<script" not in released._repr_html_()
    assert "coefficient of variation above 15%" in text
    assert repr(released).startswith("Release of Incomes")
    assert "ε = 2 (differential privacy)" in repr(released)
    assert shown(released.guarantee).endswith(released.guarantee.sentences()[1])


def test_a_run_with_a_seed_says_so_and_shows_no_number(folder, opened):
    tried = svysynth.release(folder / "people.toml", folder / "trial", svysynth.Streams.seeded(1))
    for text in (shown(tried), repr(tried)):
        assert "NOT FOR RELEASE" in text
        assert "not charged" in text.lower()
        assert not any(
            f"{estimate:,.0f}" in text for estimate in tried.tables["estimate"].drop_nulls() if estimate > 99
        )


def test_a_budget_shows_what_is_left(opened):
    assert "ε = 20, 20 left after 0 charges" in repr(opened)
    assert "left" in shown(opened)
    assert "differential privacy" in shown(opened)


def test_what_was_verified_says_whether_a_ledger_was_asked(folder, released):
    both = (
        svysynth.verify(folder / "release", folder / "people.toml"),
        svysynth.verify(folder / "release", files_only=True),
    )
    for found, asked in zip(both, (True, False), strict=True):
        for text in (shown(found), repr(found)):
            assert ("not checked against a ledger" not in text.lower()) == asked
    assert "checksums of" in shown(both[0])


@pytest.fixture(scope="module")
def calibrated(survey):
    return svysynth.calibrate(svysynth.FBS(), survey, 60.0, 2, streams=svysynth.Streams.seeded(1), draws=400)


def test_what_was_calibrated_or_drawn_says_that_it_was_not_charged(calibrated):
    synthetic = calibrated.synthesize(correction=False)
    seen = {}
    reachable([calibrated, synthetic], seen)
    values = digits_of(list(seen.values()))
    for thing in (calibrated, synthetic):
        for text in (shown(thing), repr(thing)):
            assert "not charged to a budget" in text.lower()
            assert "confidential" in text
            assert not {number[:6] for number in re.findall(r"[0-9.]{6,}", text)} & values
    assert "2 synthetic surveys of 600 records" in repr(synthetic)
    assert "600" in shown(synthetic)


def test_files_that_are_read_leave_the_charge_to_verification(calibrated):
    frames = [survey.frame for survey in calibrated.synthesize(correction=False).surveys]
    read = svysynth.read_synthetic(frames, outcome="income", public=["region", HOSTILE])
    for text in (shown(read), repr(read)):
        assert "read from files; svysynth.verify tells whether a budget was charged" in text.lower()


def test_whatever_is_in_a_card_is_text():
    table = html_table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, "1"]] * (MOST_ROWS + 5), 1)
    html = card(
        HOSTILE, warning=HOSTILE, sentences=[HOSTILE], facts={HOSTILE: HOSTILE}, tables=[table], footnote="x\x1b"
    )
    text = Checked(html).text
    assert text.count(HOSTILE) == 7 + MOST_ROWS
    assert "5 more rows are not shown" in text
    assert "\x1b" not in html


def test_every_type_that_users_meet_has_a_card():
    for name in ("Survey", "Release", "Synthetic", "Calibrated", "More", "Verified", "BudgetState", "Guarantee"):
        assert callable(getattr(svysynth, name)._repr_html_)
