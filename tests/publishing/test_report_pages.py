"""The two HTML reports: structure, escaping, what they say, and that the code they give makes the published tables.

The Stata code is generated and looked at here, never run: Stata is not free software and no machine of ours has it.
"""

import base64
import csv
import hashlib
import html
import io
import itertools
import re
import runpy
import subprocess
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import date
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import openpyxl
import polars as pl
import pytest

import svysynth
from no_evidence import NoEvidence
from r_survey import r_is_here
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.privacy import BoundsSpec, PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import AboutSpec, ModelSpec, Spec
from svysynth.core.streams import Streams
from svysynth.estimation.calibration import totals_of_groups
from svysynth.estimation.combining import Synthetic
from svysynth.estimation.layout import NO_INTERVAL, wide_tables
from svysynth.evaluation.paper.simulation import draw_sample, make_population
from svysynth.mechanisms.base import examine
from svysynth.mechanisms.noisy_tables.mechanism import NoiseEvidence
from svysynth.mechanisms.noisy_tables.tables import additive_tables
from svysynth.mechanisms.pseudo_posterior.calibration import Calibration, Trial
from svysynth.mechanisms.pseudo_posterior.evidence import CalibrationEvidence
from svysynth.mechanisms.pseudo_posterior.mechanism import make_model
from svysynth.mechanisms.pseudo_posterior.python_interface import calibrate
from svysynth.models.diagnostics import Verdict
from svysynth.models.sampler import Fit
from svysynth.models.synthesis import make_synthetic
from svysynth.privacy.guarantee import additive, asymptotic
from svysynth.privacy.ledger import charge, open_budget
from svysynth.privacy.release import MICRODATA_DIGITS, TABLE_DIGITS, NotCharged, Release, rounded
from svysynth.publishing.lookalikes import look_alikes
from svysynth.publishing.public_folder import publish
from svysynth.publishing.report.excel import write_workbook
from svysynth.publishing.report.internal import Review, internal_page
from svysynth.publishing.report.page import policy, source
from svysynth.publishing.report.plots import IN_THE_DARK, MOST_POINTS, violins
from svysynth.publishing.report.public import MOST_ROWS_SHOWN, public_page, snippets
from svysynth.publishing.verdict import beside, judge_release
from svysynth.survey.domains import PublicDomain, domain_column
from svysynth.survey.files import write_frame
from svysynth.survey.formats.csv import guarded
from svysynth.survey.survey import survey_from_frame

DAY = date(2030, 1, 2)
SEED = Streams.seeded(11)
DATA_ADDRESS = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)")
HOSTILE = ["<script>alert(1)</script>", "=1+1", "\"'><img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "$x^2$", "&lt;b&gt;"]
EMPTY_TAGS = {"meta", "img", "source", "br"}


# --- releases to report on ---


@cache
def paid(accounting="asymptotic", epsilon="10.8"):
    """A charge as a release needs it, to a ledger that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        open_budget(Path(folder) / "ledger.sqlite", "tests", "1000", accounting)
        return charge(Path(folder) / "ledger.sqlite", "tests", epsilon, "report", accounting)


def spec_of(mechanism="fbs", tables=(), smoothing="full", **survey):
    roles = {"outcome": "salary", "weight": "weight", "strata": "field", "public": ("field", "gender")}
    bounds = BoundsSpec(outcome=(1000.0, 500000.0), weight=(1.0, 500.0)) if mechanism == "laplace" else None
    promise = "global" if mechanism == "laplace" else "asymptotic"
    return Spec(
        survey=SurveySpec(**({"data": "d.csv", "population_total": 100_000.0} | roles | survey)),
        privacy=PrivacySpec(mechanism=mechanism, guarantee=promise, epsilon=10.8, datasets=3, draws=400, bounds=bounds),
        about=AboutSpec(title="Salaries", producer="Office of Tests", purpose="To see whether pages hold."),
        model=ModelSpec(smoothing=smoothing),
        tables=tables,
    )


def on_the_grid(synthetic):
    surveys = [replace(survey, frame=rounded(survey.frame, MICRODATA_DIGITS)) for survey in synthetic.surveys]
    return replace(synthetic, surveys=tuple(surveys))


def release_of(synthetic, spec, **changes):
    """The release of synthetic surveys, as the pipeline makes it."""
    synthetic = on_the_grid(synthetic)
    first = synthetic.surveys[0]
    strata = [spec.survey.strata] if spec.survey.strata else []
    promise = asymptotic(
        spec.privacy.mechanism,
        spec.privacy.epsilon,
        len(synthetic.surveys),
        confidential=(spec.survey.outcome, spec.survey.weight),
        public=tuple(dict.fromkeys([*spec.survey.public, *strata])),
        transform=spec.survey.transform,
        draws=spec.privacy.draws,
    )
    return Release(
        paid(),
        promise,
        spec,
        {column: first.levels(column) for column in spec.survey.public},
        len(first),
        rounded(synthetic.tabulate_all(spec.requested_tables, spec.estimation), TABLE_DIGITS),
        synthetic.surveys,
        created=DAY,
        **changes,
    )


@cache
def sample():
    return draw_sample(make_population(SEED), SEED, n=400)


@cache
def example(mechanism):
    """All that the internal page needs, from a model that was really calibrated."""
    spec = spec_of(mechanism)
    found = calibrate(make_model(spec.privacy.mechanism, spec.model), sample(), 10.8, 3, draws=400, streams=SEED)
    synthetic = found.synthesize(correction=False)
    release = release_of(synthetic, spec)
    return release, sample(), synthetic, review_of(release, sample()), CalibrationEvidence(found.calibration)


def review_of(release, survey):
    """What the confidential data say of a release, as the pipeline finds it."""
    direct = svysynth.tabulate_all(survey, release.requested_tables)
    compared, examined = beside(release.tables, direct), examine(survey, release.spec, direct)
    return Review(compared, examined, judge_release(compared, examined.findings, [], None))


@cache
def noisy():
    spec = spec_of("laplace")
    found = additive_tables(sample(), spec.requested_tables, 10.8, spec.privacy.bounds)
    promise = additive(10.8, confidential=("salary", "weight"), public=("field", "gender"))
    levels = {column: sample().levels(column) for column in sample().public}
    notes = (found.budget, *found.notes)
    return Release(
        paid(promise.accounting),
        promise,
        spec,
        levels,
        400,
        rounded(found.tables, TABLE_DIGITS),
        notes=notes,
        created=DAY,
    )


def drawn_from(spec, labels, records_per_label=3):
    """Synthetic surveys with given labels in every public column, drawn from no model at all: for layout only."""
    generator = SEED.generator("layout")
    n = records_per_label * len(labels)
    public = {name: generator.permuted(np.repeat(labels, records_per_label)) for name in spec.survey.public[1:]}
    frame = pl.DataFrame({spec.survey.public[0]: np.repeat(labels, records_per_label), **public})
    if spec.survey.fpc:
        sizes = records_per_label * np.arange(1.5, 1.5 + len(labels))
        frame = frame.with_columns(pl.Series(spec.survey.fpc, np.repeat(sizes, records_per_label)))
    surveys = []
    for _ in range(2):
        numbers = {"weight": generator.uniform(1, 9, n), "weight_unsmoothed": generator.uniform(1, 9, n)}
        filled = frame.with_columns(pl.Series(spec.survey.outcome, generator.lognormal(10, 0.4, n)), **numbers)
        roles = spec.survey.model_copy(update={"weight": "weight"})
        survey = survey_from_frame(filled, roles)
        surveys.append(replace(survey, frame=survey.frame.with_columns(weight_unsmoothed=numbers["weight_unsmoothed"])))
    return make_synthetic(tuple(surveys), make_model(spec.privacy.mechanism, spec.model))


@cache
def hostile_release():
    table = TableSpec(by=("<i>column</i>",), name="</style><script>table()</script>")
    spec = spec_of(tables=(table,), strata=None, public=("<i>column</i>",))
    about = AboutSpec(title="<b>title</b>", producer="'\"><script>", purpose="</main>")
    spec = spec.model_copy(update={"about": about})
    return release_of(drawn_from(spec, HOSTILE), spec, notes=("<u>note</u>",))


# --- a page taken apart ---


class Elements(HTMLParser):
    """Every element in order, with its attributes and its text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.all, self.open = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.all.append({"tag": tag, "text": "", "within": [one["tag"] for one in self.open], **dict(attributes)})
        if tag not in EMPTY_TAGS:
            self.open.append(self.all[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def __getitem__(self, tag):
        return [element for element in self.all if element["tag"] == tag]


@cache
def pages():
    found = {f"public {name}": public_page(example(name)[0]) for name in ("fbs", "fbp")}
    found |= {f"internal {name}": internal_page(*example(name)) for name in ("fbs", "fbp")}
    found["public laplace"] = public_page(noisy())
    found["internal laplace"] = internal_page(
        noisy(), sample(), Synthetic(()), review_of(noisy(), sample()), NoiseEvidence(noisy().tables, noisy().notes)
    )
    found["public hostile"] = public_page(hostile_release())
    return found


EVERY_PAGE = [f"{kind} {name}" for kind in ("public", "internal") for name in ("fbs", "fbp", "laplace")]
EVERY_PAGE.append("public hostile")


@pytest.fixture(params=EVERY_PAGE)
def page(request):
    return pages()[request.param]


def words(page):
    """The page without its images: what it says."""
    return DATA_ADDRESS.sub("", page)


def squeezed(text):
    return " ".join(text.split())


# --- what every page keeps to ---


def test_a_page_allows_its_own_style_and_nothing_else(page):
    elements = Elements(page)
    (style,) = elements["style"]
    digest = base64.b64encode(hashlib.sha256(style["text"].encode()).digest()).decode()
    (allowed,) = [meta["content"] for meta in elements["meta"] if meta.get("http-equiv") == "Content-Security-Policy"]
    assert allowed == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert allowed == policy(source("style.css"))
    first_use = min(page.index("<style"), page.index("<title"), page.index("<body"))
    assert page.index("Content-Security-Policy") < first_use


def test_a_page_runs_and_fetches_nothing(page):
    elements = Elements(page)
    allowed = (
        "html head meta title style body a div p header h1 h2 h3 dl dt dd nav ul ol li main section table caption "
    )
    allowed += "thead tbody tr th td span code pre figure figcaption picture source img sub br footer strong"
    assert {element["tag"] for element in elements.all} <= set(allowed.split())
    for element in elements.all:
        assert not [name for name in element if name.startswith("on") or name == "style"]
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in elements["img"])
    files = r"#[a-z]+|tables\.(csv|xlsx)|microdata-\d+\.(csv|parquet)|manifest\.json|SHA256SUMS"
    assert all(re.fullmatch(files, link["href"]) for link in elements["a"])


def test_no_addresses_but_the_names_of_formats(page):
    drawings = [base64.b64decode(found).decode() for found in DATA_ADDRESS.findall(page)]
    for text in (words(page), *drawings):
        assert all(found.startswith("http://www.w3.org/") for found in re.findall(r"https?://[^\s\"'<]*", text))
        assert "<script" not in text
    assert not any("Date" in drawing or "matplotlib" in drawing.split("<defs")[0] for drawing in drawings)


def test_headings_and_landmarks(page):
    elements = Elements(page)
    assert elements["html"][0]["lang"] == "en"
    assert elements["a"][0]["href"] == "#main"
    assert [len(elements[tag]) for tag in ("h1", "header", "nav", "main", "footer")] == [1] * 5
    levels = [int(element["tag"][1]) for element in elements.all if re.fullmatch(r"h\d", element["tag"])]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    names = {element["id"] for element in elements.all if "id" in element}
    assert len(names) == len([element for element in elements.all if "id" in element])
    referred = [link["href"][1:] for link in elements["a"] if link["href"].startswith("#")]
    referred += [element["aria-labelledby"] for element in elements.all if "aria-labelledby" in element]
    assert set(referred) <= names


def test_tables_and_images_can_be_read_aloud(page):
    elements = Elements(page)
    assert all(cell["scope"] in ("col", "row", "colgroup", "rowgroup") for cell in elements["th"])
    assert all(image["alt"] and int(image["width"]) and int(image["height"]) for image in elements["img"])
    wide = [element for element in elements.all if element.get("class") == "scroll" or element["tag"] == "pre"]
    for element in wide:
        assert element["tabindex"] == "0"
        assert element["role"] == "region"
        assert element.get("aria-label") or element.get("aria-labelledby")
    assert len(wide) >= len(elements["table"])


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_from_its_paper():
    """WCAG's 4.5 for every colour of text, on light pages and on dark."""
    style = source("style.css")
    light = dict(re.findall(r"--([\w-]+): (#\w{6})", style.split("@media")[0]))
    dark = light | dict(re.findall(r"--([\w-]+): (#\w{6})", style.split("@media")[1]))
    for theme in (light, dark):
        for paper in ("paper", "panel"):
            assert min(contrast(theme[paper], theme[ink]) for ink in ("ink", "muted", "accent")) >= 4.5
    assert contrast(light["alarm"], "#ffffff") >= 4.5
    (alarm,) = re.findall(r"\.bad { color: (#\w{6})", style)
    assert contrast(dark["paper"], alarm) >= 4.5
    for ink, in_the_dark in IN_THE_DARK.items():
        if ink != "#dde3e8":  # the grid, which is not to be read
            assert contrast(light["paper"], ink) >= 4.5
            assert contrast(dark["paper"], in_the_dark) >= 4.5


@pytest.mark.parametrize("name", ["public fbs", "public fbp", "internal fbs", "internal fbp", "public hostile"])
def test_an_asymptotic_promise_is_not_called_more_than_it_is(name):
    text = words(pages()[name])
    assert "ε-DP" not in text
    assert not re.search(r"\bpure\b", text, re.IGNORECASE)
    assert "asymptotic" in text


def test_the_same_release_gives_the_same_bytes():
    assert public_page(example("fbs")[0]) == pages()["public fbs"]
    assert internal_page(*example("fbs")) == pages()["internal fbs"]


# --- what the public page says ---


def test_the_public_page_says_what_was_released_and_promised():
    release = example("fbs")[0]
    text = squeezed(Elements(pages()["public fbs"])["body"][0]["text"])
    for sentence in (*release.guarantee.sentences(), "Salaries", "Office of Tests", "To see whether pages hold."):
        assert sentence in text
    assert "3 synthetic data files" in text
    assert "NOT FOR RELEASE" not in text
    assert "NOT FOR RELEASE" in words(public_page(replace(release, charge=NotCharged())))
    assert release.charge.anchor.hash in text


def test_the_tables_of_the_page_are_those_of_the_release():
    release = example("fbp")[0]
    (wide,) = wide_tables(release.tables, {})
    cells = [squeezed(cell["text"]) for cell in Elements(pages()["public fbp"])["td"] if "class" in cell]
    expected = []
    for row in wide.rows:
        (count, mean), marks = row.estimates, {"reliable": "", "caution": "*", "unreliable": "**"}
        expected += [f"{row.n:,}", f"{count.estimate:,.0f}{marks[count.reliability]}", f"{count.se:,.0f}"]
        expected += [f"{mean.estimate:,.0f}{marks[mean.reliability]}", f"{mean.se:,.0f}"]
    assert cells == expected
    labels = [cell["text"] for cell in Elements(pages()["public fbp"])["th"] if cell["scope"] in ("row", "rowgroup")]
    assert labels.count("Male") == 9
    assert labels.count("1") == 1


def test_public_weights_are_not_said_to_be_drawn():
    assert "weights were drawn" in squeezed(pages()["public fbs"])
    text = squeezed(public_page(public_weights()))
    assert "and the same weights, which are public. Its salary was drawn from a statistical model" in text
    assert "weights were drawn" not in text


def test_quantiles_without_an_interval_are_explained(tmp_path):
    table = TableSpec(by=("field", "gender"), statistics=("quantile(0.01)", "median"))
    release = release_of(example("fbs")[2], spec_of("fbs", (table,)))
    known = release.tables.with_columns(pl.col("se").fill_null(1.0))
    assert not known.equals(release.tables)
    assert NO_INTERVAL in squeezed(html.unescape(public_page(release)))
    assert NO_INTERVAL not in squeezed(html.unescape(public_page(replace(release, tables=known))))
    workbook = publish(release, tmp_path).with_name(release.file_name("tables.xlsx"))
    notes = [cell.value for (cell,) in openpyxl.load_workbook(workbook)["Notes"].iter_rows()]
    assert notes[-1] == NO_INTERVAL


def test_many_distributions_side_by_side_take_the_whole_width():
    shown = {"axis": "ratio", "alt": "ratios", "line": 1.0, "line_name": "one"}
    for number, wide in ((4, False), (5, True)):
        names = ["Share with salary at or above 50,000"] * number
        assert violins([np.arange(3.0)] * number, names, **shown).wide == wide


def test_noise_is_told_apart_from_sampling():
    text = pages()["public laplace"]
    elements = Elements(text)
    headings = [cell["text"] for cell in elements["th"] if cell["scope"] == "col"]
    assert headings.count("from sampling") == headings.count("from privacy") == 2
    shown = {squeezed(cell["text"]) for cell in elements["td"]}
    means = noisy().tables.filter(statistic="mean")
    assert {f"{value:,.0f}" for name in ("se_sampling", "se_privacy") for value in means[name]} <= shown
    assert not elements["pre"]
    assert "microdata" not in text


def test_nothing_that_was_found_is_public():
    """Neither what calibration found nor anything of the confidential sample."""
    release, survey, _, review, evidence = example("fbs")
    calibration = evidence.calibration
    text = words(pages()["public fbs"])

    def says(number):
        return re.search(rf"(?<![\d,.]){re.escape(number)}", text) is not None  # 136,525 does not say 6,525

    assert says(f"{release.records:,}")
    for value in (calibration.largest_bound, calibration.trials[-1].constant, *review.compared["estimate_direct"][1:]):
        assert not says(f"{value:.6g}")
        assert not says(f"{value:,.0f}") or value < 1000
    assert release.records == len(survey)


def test_labels_are_shown_as_they_are():
    elements = Elements(pages()["public hostile"])
    labels = [cell["text"] for cell in elements["th"] if cell["scope"] == "row"]
    assert set(labels) >= set(HOSTILE)
    assert elements["title"][0]["text"] == "<b>title</b>"
    assert elements["h1"][0]["text"] == "<b>title</b>"
    assert "</style><script>table()</script>" in elements["caption"][0]["text"]
    assert "<u>note</u>" in [item["text"] for item in elements["li"]]
    drawings = [base64.b64decode(found).decode() for found in DATA_ADDRESS.findall(pages()["public hostile"])]
    assert all("<img" not in drawing and "<script" not in drawing for drawing in drawings)
    assert any(html.escape("$x^2$") in drawing for drawing in drawings)


def test_a_page_stays_of_a_size_that_can_be_opened():
    labels = [f"level {number}" for number in range(MOST_ROWS_SHOWN + 500)]
    names = [TableSpec(by=("g",), name=f"table {number}", statistics=("count",)) for number in range(2)]
    spec = spec_of(tables=tuple(names), strata=None, public=("g",))
    page = public_page(release_of(drawn_from(spec, labels, 1), spec))
    rows = [cell for cell in Elements(page)["th"] if cell["scope"] == "row" and "tbody" in cell["within"]]
    assert 2 * MOST_ROWS_SHOWN <= len(rows) <= 2 * MOST_ROWS_SHOWN + 50
    assert page.count("501 more rows are in") == 2
    assert len(page) < 5_000_000


@pytest.mark.parametrize(
    "outcome", [np.linspace(-50, 50, 12), np.full(12, 3.0), np.array([1e-9, 1e9] * 6)], ids=["negative", "same", "wide"]
)
def test_the_corners_of_what_a_spec_may_ask_for(outcome):
    """One file, no table columns, a label without records, strata that are not public, an outcome of any kind."""
    labels = {"g": {"a": "a", "b": "b", "none": "none"}}
    tables = (
        TableSpec(by=(), statistics=("count", "mean", "total", "proportion")),
        TableSpec(by=("g",), statistics=("mean",)),
        TableSpec(by=("g", "h")),
    )
    spec = spec_of(tables=tables, strata="s", public=("g", "h"), transform="identity", outcome="y", labels=labels)
    frame = pl.DataFrame({"g": ["a", "b"] * 6, "h": ["u", "u", "v"] * 4, "s": [1, 1, 2, 2] * 3, "y": outcome})
    survey = survey_from_frame(frame.with_columns(weight=pl.lit(2.0)), spec.survey)
    one = replace(survey, frame=survey.frame.with_columns(weight_unsmoothed=pl.lit(2.0)))
    release = release_of(Synthetic((one,)), spec)
    elements = Elements(public_page(release))
    text = squeezed(elements["main"][0]["text"])
    assert "There is one file" in text
    assert [caption["text"].split("\n")[0] for caption in elements["caption"]] == [
        "Table 1. total",
        "Table 2. g",
        "Table 3. g by h",
    ]
    assert "–" in [squeezed(cell["text"]) for cell in elements["td"]]
    assert "needs two files" in internal_page(
        release, survey, Synthetic((one,)), review_of(release, survey), NoEvidence()
    )


# --- the code it gives ---


def assert_same(found, tables, by, statistic, digits=2e-9):
    """Estimate and standard error of the cells, whatever their order; `digits` is for numbers of rounded weights."""
    expected = tables.filter(pl.col("statistic") == statistic)
    both = expected.join(found, on=list(by), suffix="_found")
    assert both.height == found.height > 0
    for name in ("estimate", "se"):
        known = digits * both["estimate"].to_numpy() if digits > 1e-8 else 1e-15  # counts that are totals have no error
        pair = (both[column].to_numpy() for column in (f"{name}_found", name))
        assert np.isclose(*pair, rtol=digits, atol=known, equal_nan=True).all()
    sure = both.filter(pl.col("se") > 1e-6 * pl.col("estimate"))
    np.testing.assert_allclose(sure["df_found"].cast(pl.Float64).to_numpy(), sure["df"].to_numpy(), rtol=1e-6)


def write_microdata(release, folder):
    for number, frame in enumerate(release.previews, start=1):
        write_frame(frame, folder / f"microdata-{number}.csv")


@cache
def paper_release():
    """FBP's files under the paper's rules, whose variances know no strata."""
    synthetic = example("fbp")[2]
    return release_of(make_synthetic(synthetic.surveys, svysynth.FBP("paper")), spec_of("fbp", smoothing="paper"))


ODD_NAMES = ("my field", "=x", 'quo"te', "back`tick\\", "if", "cell")


@cache
def odd_release():
    """Column names that no language takes as they are, labels that look like numbers or nothing, all statistics."""
    tables = (TableSpec(by=ODD_NAMES[:2], statistics=("count", "mean", "total", "proportion")),)
    spec = spec_of("fbp", tables, strata="my field", public=ODD_NAMES, outcome="pay %")
    spec = spec.model_copy(update={"estimation": EstimationSpec(lonely="certainty", confidence=0.9)})
    return release_of(drawn_from(spec, ["01", "1", "NA", "'a"], 60), spec)


@cache
def paper_errors():
    spec = spec_of("fbs")
    spec = spec.model_copy(update={"estimation": EstimationSpec(standard_errors="paper")})
    return release_of(example("fbs")[2], spec)


@cache
def public_weights():
    """Both weights are the survey's own, and add up to no declared total."""
    spec = spec_of("fbs", weight_public=True)
    synthetic = drawn_from(spec, ["1", "2", "3"], 40)
    kept = [one.frame.with_columns(weight_unsmoothed=pl.col("weight")) for one in synthetic.surveys]
    surveys = [replace(one, frame=frame) for one, frame in zip(synthetic.surveys, kept, strict=True)]
    return release_of(replace(synthetic, surveys=tuple(surveys)), spec)


def calibrated(mechanism, *by):
    """Files whose weights were calibrated to totals by columns, or by their crossing."""
    synthetic, margins = example(mechanism)[2], []
    for columns in by:
        count = sample().frame.group_by(columns, maintain_order=True).len()
        rows = enumerate(count.rows())
        pairs = [(tuple(map(str, levels)), size * (1.0 + place % 3 / 5)) for place, (*levels, size) in rows]
        scale = 120_000 / sum(total for _, total in pairs)
        margins.append({"by": columns, "totals": tuple((levels, total * scale) for levels, total in pairs)})
    calibration = CalibrationSpec(method="rake" if len(by) > 1 else "post-stratify", margins=margins)
    spec = spec_of(mechanism, calibration=calibration, population_total=None)
    surveys = []
    for survey in synthetic.surveys:
        totals = totals_of_groups(survey, calibration, survey.frame)
        weights = survey.frame.select("weight", "weight_unsmoothed").to_numpy()
        sums = np.stack([np.bincount(totals.cell, column, totals.cells) for column in weights.T], axis=1)
        weights = pl.DataFrame(weights * totals.factors(sums)[totals.cell], ["weight", "weight_unsmoothed"])
        surveys.append(replace(survey, frame=survey.frame.with_columns(weights), calibration=calibration))
    return release_of(replace(synthetic, surveys=tuple(surveys)), spec)


@cache
def finite_populations():
    """From 1/4.5 to 2/3 of the population are in the sample."""
    spec = spec_of("fbs", fpc="number in field", fpc_public=True)
    return release_of(drawn_from(spec, ["1", "2", "3", "4"], 40), spec)


def with_schools(synthetic):
    """The same files, whose records are divided among seven clusters in each stratum."""
    surveys = []
    for survey in synthetic.surveys:
        school = 8 * survey.frame["field"].to_physical().cast(pl.Int64) + np.arange(len(survey)) % 7
        design = replace(survey.design, cluster="school")
        surveys.append(replace(survey, design=design, frame=survey.frame.with_columns(school=school)))
    return replace(synthetic, surveys=tuple(surveys))


@cache
def in_a_domain(mechanism, standard_errors="full", clusters=False):
    """Tables of a part of the population that is no product of levels; its numeric labels are numbers in CSV."""
    of_all, of_table = "field <> 2", "gender = 1 or field = 3"
    table = TableSpec(by=("field", "gender"), statistics=("count", "mean", "total", "proportion"), domain=of_table)
    estimation = EstimationSpec(standard_errors=standard_errors)
    roles = {"cluster": "school"} if clusters else {}
    spec = spec_of(mechanism, (table,), domain=of_all, domains=(of_all, of_table), **roles)
    spec = spec.model_copy(update={"estimation": estimation})
    synthetic = with_schools(example(mechanism)[2]) if clusters else example(mechanism)[2]
    fields, genders = (synthetic.surveys[0].levels(column) for column in ("field", "gender"))
    labels = {"field": fields, "gender": genders}
    all_but_one = [{"field": [field for field in fields if field != fields[1]]}]
    either = [{"gender": [genders[0]]}, {"field": [fields[2]]}]
    domains = {
        domain_column(of_all): PublicDomain.of_parts(("field",), all_but_one, labels),
        domain_column(of_table): PublicDomain.of_parts(("field", "gender"), either, labels),
    }
    surveys = [replace(survey, domain=of_all, domains=domains) for survey in synthetic.surveys]
    return release_of(replace(synthetic, surveys=tuple(surveys)), spec, domains=domains)


@cache
def clustered():
    """Files with clusters."""
    return release_of(with_schools(example("fbs")[2]), spec_of(cluster="school"))


@cache
def raked_in_a_domain():
    raked, other = calibrated("fbs", ("field",), ("gender",)), in_a_domain("fbs")
    own = {"domain": other.spec.survey.domain, "domains": other.spec.survey.domains}
    spec = raked.spec.model_copy(
        update={"survey": raked.spec.survey.model_copy(update=own), "tables": other.spec.tables}
    )
    surveys = (replace(one, domain=own["domain"], domains=other.domains) for one in raked.microdata)
    return release_of(replace(example("fbs")[2], surveys=tuple(surveys)), spec, domains=other.domains)


QUANTILES = ["mean", "median", "quantile(0.2)", "share(> 60000)"]
IN_R = {"median": "quantile_1", "quantile(0.2)": "quantile_2", "share(> 60000)": "share_3"}


def with_quantiles(model, roles=None, **estimation):
    """Tables of files of a model with medians, quantiles and shares above a threshold."""
    table = TableSpec(by=("field",), statistics=QUANTILES)
    spec = spec_of(model, (table,), **(roles or {}))
    synthetic = with_schools(example(model)[2]) if roles else example(model)[2]
    return release_of(synthetic, spec.model_copy(update={"estimation": EstimationSpec(**estimation)}))


RELEASES = {
    "raked": lambda: calibrated("fbs", ("field",), ("gender",)),
    "raked, of the population": lambda: calibrated("fbp", ("field",), ("gender",)),
    "post-stratified": lambda: calibrated("fbs", ("field", "gender")),
    "clusters": clustered,
    "clusters, in a domain": lambda: in_a_domain("fbs", clusters=True),
    "fbs": lambda: example("fbs")[0],
    "fbp": lambda: example("fbp")[0],
    "fbp as in the paper": paper_release,
    "odd names": odd_release,
    "standard errors as in the paper": paper_errors,
    "quantiles, fbp": lambda: with_quantiles("fbp", quantile_rule="school", confidence=0.9),
    "quantiles, clusters": lambda: with_quantiles("fbs", {"cluster": "school"}, quantile_interval="xlogit"),
    "public weights": public_weights,
    "finite populations": finite_populations,
    "a domain, fbs": lambda: in_a_domain("fbs"),
    "a domain, fbp": lambda: in_a_domain("fbp"),
    "a domain, raked": raked_in_a_domain,
    "a domain, standard errors as in the paper": lambda: in_a_domain("fbs", "paper"),
}


@pytest.mark.parametrize("name", RELEASES)
def test_the_python_code_makes_the_tables(name, tmp_path, monkeypatch):
    release = RELEASES[name]()
    write_microdata(release, tmp_path)
    (tmp_path / "use.py").write_text(snippets(release)["python"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with redirect_stdout(io.StringIO()):
        made = runpy.run_path("use.py")["table"]
    table = release.requested_tables[0]
    made = made.rename({guarded(column): column for column in table.by})
    for statistic in table.statistics:
        assert_same(made.filter(statistic=statistic), release.tables, table.by, statistic)


@pytest.mark.parametrize("name", RELEASES)
def test_the_r_code_makes_the_tables(name, tmp_path):
    if not r_is_here():
        pytest.skip("R with the packages survey and mitools is not installed here: the code cannot be run")
    release = RELEASES[name]()
    table = release.requested_tables[0]
    write_microdata(release, tmp_path)
    names = {name: IN_R.get(name, name) for name in table.statistics}
    kept = [f'write.csv({name}, "{name}.csv", row.names = FALSE)' for name in names.values()]
    code = snippets(release)["r"] + "\n".join(kept)
    (tmp_path / "use.R").write_text(code, encoding="utf-8")
    done = subprocess.run(
        ["Rscript", "--vanilla", "use.R"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for statistic in table.statistics:
        missing = {"estimate": "NA", "se": "NA"}  # of these columns alone: a level may be called NA
        made = pl.read_csv(tmp_path / f"{names[statistic]}.csv", infer_schema=False, null_values=missing)
        if statistic == "proportion":
            parts = made["cell"].str.replace(r"^interaction\(.*\)", "").str.split(".").to_list()
            made = made.with_columns(
                pl.Series(guarded(column), [part[place] for part in parts]) for place, column in enumerate(table.by)
            )
            made = made.filter(pl.col("estimate").cast(pl.Float64) > 0)
        made = made.rename({guarded(column): column for column in table.by})
        made = made.with_columns(pl.col("estimate", "se").cast(pl.Float64))
        digits = 3e-8 if release.spec.survey.calibration else 2e-9  # R takes the totals from the rounded weights
        assert_same(made, release.tables, table.by, statistic, digits)


def test_the_stata_code_is_whole():
    """Looked at, not run: see the first paragraph."""
    code = snippets(example("fbp")[0])["stata"]
    assert code.count("{") == code.count("}")
    assert "strata(stratum)" in code
    assert "mean(weight), by(field gender)" in code
    assert "svyset _n [pweight = weight], strata(stratum) poststrata(one) postweight(known)" in code
    assert code.count("[pweight = weight_unsmoothed]") == 1  # counts; means by shares
    assert "[pweight = weight], poststrata(one)" in snippets(paper_release())["stata"]
    assert snippets(example("fbs")[0])["stata"].count("[pweight = weight_unsmoothed]") == 2
    post = snippets(RELEASES["post-stratified"]())["stata"]
    assert "egen post = group(field gender)" in post
    assert "poststrata(post) postweight(known)" in post
    assert "svyset with the option rake()" in snippets(RELEASES["raked"]())["stata"]
    for name in ("standard errors as in the paper", "public weights"):
        old = snippets(RELEASES[name]())["stata"]
        assert not any(word in old for word in ("unsmoothed]", "poststrata", "known"))
    odd = snippets(odd_release())["stata"]
    assert "varnames(nonames) rowrange(2)" in odd
    assert "group(v4 v5), label" in odd
    assert not any(name in odd.split("mata:")[1] for name in ODD_NAMES[:4])


def test_code_names_columns_as_the_files_do(tmp_path):
    names = [*ODD_NAMES, "+1", "-2", "@x", "'=x", "plain"]
    write_frame(pl.DataFrame({name: ["x"] for name in names}), tmp_path / "d.csv")
    with (tmp_path / "d.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.reader(file)) == [guarded(name) for name in names]


# --- what the internal page says ---


def test_the_internal_page_is_marked_throughout():
    text = pages()["internal fbs"]
    assert text.count("INTERNAL") >= 4
    banner = next(element for element in Elements(text).all if element.get("class") == "banner sticky")
    assert banner["text"].strip().startswith("INTERNAL")
    assert "@page internal" in text
    assert "noindex" in text


def test_the_utility_of_a_cell_is_the_formula():
    release = example("fbs")[0]
    direct = svysynth.tabulate_all(sample(), release.requested_tables)
    keys = {"statistic": "mean", "field": "7", "gender": "Male"}
    (ours,), (theirs,) = (frame.filter(**keys).to_dicts() for frame in (release.tables, direct))
    rmse = np.hypot(ours["estimate"] - theirs["estimate"], ours["se"])
    common = max(0, min(ours["upper"], theirs["upper"]) - max(ours["lower"], theirs["lower"]))
    lengths = [one["upper"] - one["lower"] for one in (ours, theirs)]
    overlap = sum(common / length for length in lengths) / 2
    cells = [cell["text"] for cell in Elements(pages()["internal fbs"])["td"]]
    place = cells.index(f"{theirs['estimate']:,.0f}")
    expected = [f"{theirs['se']:,.0f}", f"{ours['estimate']:,.0f}", f"{ours['se']:,.0f}"]
    expected += [f"{rmse / theirs['se']:.2f}", f"{overlap:.2f}"]
    assert cells[place + 1 : place + 6] == expected


def test_look_alikes_are_found_where_they_are():
    _, survey, synthetic, _, _ = example("fbs")
    found = look_alikes(survey, synthetic.surveys)
    assert found.share < 0.2
    assert found.expected < 0.2
    leak = survey.frame.with_columns(weight_unsmoothed=pl.col("weight"))
    leaking = replace(synthetic.surveys[0], frame=leak)
    found = look_alikes(survey, (leaking, *synthetic.surveys[1:]))
    assert found.in_any == found.records
    assert found.share >= 1 / 3
    assert look_alikes(survey, (leaking,)).share == 1
    assert look_alikes(survey, (leaking,)).expected is None
    assert look_alikes(survey, ()) is None


def test_a_large_survey_is_thinned_and_keeps_its_largest():
    release, survey, synthetic, review, evidence = example("fbs")
    calibration = evidence.calibration
    many = -(-(MOST_POINTS + 1000) // len(survey))
    bounds = np.tile(calibration.bounds, many)
    bounds[0], bounds[1] = 77.25, np.inf
    weighted = np.tile(calibration.weighted_bounds, many)
    alpha = np.tile(calibration.fit.alpha, many)
    alpha[1] = 0
    fit = Fit(calibration.fit.model, calibration.fit.records, alpha, {}, Verdict(1.02, 300, 500, 2, 0.9))
    large = Calibration(fit, bounds, weighted, 1.7, 1.8, 10.8, 3, (Trial(float("inf"), 1.5),))
    survey = replace(survey, frame=pl.concat([survey.frame] * many))
    surveys = tuple(replace(one, frame=pl.concat([one.frame] * many)) for one in synthetic.surveys)
    page = internal_page(release, survey, replace(synthetic, surveys=surveys), review, CalibrationEvidence(large))
    assert len(page) < 6_000_000
    text = words(page)
    assert "unweighted up to 77.2" in text
    assert text.count(">failed<") == 3
    assert "no weights needed" in text
    assert "the chains disagree" in text


# --- the workbook ---


def test_a_workbook_shows_both_parts_of_an_error_and_says_nothing_of_its_maker(tmp_path):
    notes = ["A title", *noisy().guarantee.sentences(), "two\nlines"]
    write_workbook(noisy().tables, tmp_path / "a.xlsx", notes, {})
    write_workbook(noisy().tables, tmp_path / "b.xlsx", notes, {})
    assert (tmp_path / "a.xlsx").read_bytes() == (tmp_path / "b.xlsx").read_bytes()
    book = openpyxl.load_workbook(tmp_path / "a.xlsx")
    assert book.properties.creator is None
    assert book.properties.created.year == 2000
    headings = [cell.value for cell in book.worksheets[1][2]]
    assert headings[3:7] == ["estimate", "standard error", "from sampling", "from privacy"]
    first = noisy().tables.row(0, named=True)
    assert [cell.value for cell in book.worksheets[1][3]][3:7] == [
        first[name] for name in ("estimate", "se", "se_sampling", "se_privacy")
    ]
    lines = [cell.value for (cell,) in book.worksheets[0].iter_rows()]
    assert lines == ["A title", *noisy().guarantee.sentences(), "two", "lines"]


def test_a_long_title_still_fits_a_footer(tmp_path):
    write_workbook(noisy().tables, tmp_path / "a.xlsx", ["&" * 200], {})
    assert len(openpyxl.load_workbook(tmp_path / "a.xlsx").worksheets[1].oddFooter.center.text) <= 255
