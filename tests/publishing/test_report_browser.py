"""The reports in a real browser: nothing runs, nothing is fetched, everything can be reached, and labels stay labels.

Needs Chromium or Chrome on the machine; the workbook and the CSV file of the same labels are read back too.
"""

import csv
import re
import shutil
import subprocess
from functools import cache

import numpy as np
import openpyxl
import pytest

from svysynth.core.errors import is_plain
from svysynth.core.spec.estimation import TableSpec
from svysynth.publishing.report.excel import write_workbook
from svysynth.publishing.report.public import public_page
from svysynth.survey.files import write_frame
from test_report_pages import SEED, drawn_from, pages, release_of, spec_of

CHROMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAGES = ["public fbs", "public laplace", "internal fbs"]
LABELS = 1000
FRAGMENTS = [
    *("<script>alert(1)</script>", "</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "<!--", "-->"),
    *(
        "</th></tr></table>",
        "<iframe src=javascript:alert(1)>",
        "javascript:alert(1)",
        '" onmouseover="alert(1)',
        "' x='",
    ),
    *(
        "</style><style>*{display:none}",
        "expression(alert(1))",
        "url(x)",
        "@import 'x';",
        "]]>",
        "<![CDATA[",
        "&#60;b&#62;",
    ),
    *(
        "=1+1",
        '=HYPERLINK("x")',
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-1+1",
        "@SUM(1)",
        "{=1}",
        "'",
        '"',
        "`",
        "\\",
        "%0A",
        "_x0041_",
    ),
    *(
        "{{7*7}}",
        "{% raw %}",
        "${x}",
        "$x^2$",
        "&amp;",
        "&lt;",
        "&",
        "<",
        ">",
        ";=1+1",
        ",",
        ";",
        "|",
        "NULL",
        "NA",
        "1e5",
    ),
    *("Zürich", "大阪", "القاهرة", "Ελλάδα", "👩‍🔬", "é", "\u00a0", "\u2028", "\u3000", "ﬁ", "＝1+1"),
]


@cache
def labels():
    """Labels as a survey may have them: printable, trimmed, at most 200 characters, each once."""
    generator = SEED.generator("labels")
    found = {text for text in FRAGMENTS if is_plain(text) and text.strip()}
    while len(found) < LABELS:
        pieces = [str(generator.choice(FRAGMENTS)) for _ in range(generator.integers(1, 4))]
        pieces += ["".join(chr(code) for code in generator.integers(32, 0x2FFF, generator.integers(0, 12)))]
        generator.shuffle(pieces)
        text = "".join(pieces).strip()[:200].strip()
        if text and is_plain(text):
            found.add(text)
    return sorted(text for text in found if text == text.strip())


@cache
def labelled():
    spec = spec_of(tables=(TableSpec(by=("g",)),), strata=None, public=("g",))
    return release_of(drawn_from(spec, labels(), 2), spec)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser to drive")
    path = next((found for name in CHROMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"none of {', '.join(CHROMES)} is installed: the pages cannot be looked at")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page from a file; whatever the browser complains of or asks for is kept."""
    contexts = []

    def open_page(text, **options):
        (tmp_path / "report.html").write_text(text, encoding="utf-8")
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.heard, page.asked = [], []
        page.on("console", lambda message: page.heard.append(message.text))
        page.on("pageerror", lambda error: page.heard.append(str(error)))
        page.on("dialog", lambda dialog: page.heard.append(dialog.message))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto((tmp_path / "report.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts allowed", "scripts blocked"])
def test_a_page_loads_in_silence(opened, name, scripts):
    page = opened(pages()[name], java_script_enabled=scripts)
    assert page.heard == []
    outside = [address for address in page.asked if not address.startswith(("file:", "data:"))]
    assert outside == []
    assert len([address for address in page.asked if address.startswith("file:")]) == 1
    assert page.locator("h1").inner_text() == "Salaries"
    assert page.locator("caption").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_images_are_drawn_and_follow_the_colours(opened, scheme):
    page = opened(pages()["public fbs"], color_scheme=scheme)
    shown = page.eval_on_selector_all("img", "all => all.map(one => [one.naturalWidth, one.currentSrc === one.src])")
    assert len(shown) == 3
    assert all(width > 100 and is_light == (scheme == "light") for width, is_light in shown)


@pytest.mark.parametrize("name", PAGES)
def test_everything_is_reached_by_the_tabulator(opened, name):
    page = opened(pages()[name])
    wanted = page.eval_on_selector_all("a[href], [tabindex='0']", "all => all.length")
    page.evaluate(
        "document.querySelectorAll('a[href], [tabindex=\"0\"]').forEach((one, place) => one.dataset.place = place)"
    )
    reached = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.place"))
    assert reached == [str(place) for place in range(wanted)]
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_as_wide_as_its_window(opened, name, width):
    page = opened(pages()[name], viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    reach = page.evaluate(
        "Math.max(...[...document.querySelectorAll('body *')].filter(one => !one.closest('.scroll, pre, .skip'))"
        ".map(one => one.getBoundingClientRect().right))"
    )
    assert reach <= width + 0.5


def test_the_internal_mark_stays_on_the_screen(opened):
    page = opened(pages()["internal fbs"])
    for share in (0, 0.5, 1):
        page.evaluate(f"window.scrollTo(0, {share} * document.body.scrollHeight)")
        box = page.locator(".banner").bounding_box()
        assert 0 <= box["y"] <= 1
        assert box["height"] > 20


@pytest.mark.parametrize("name", ["public fbs", "internal fbs"])
def test_a_page_prints(opened, name, tmp_path):
    reader = shutil.which("pdftotext")
    if reader is None:
        pytest.skip("pdftotext is not installed: what was printed cannot be read")
    page = opened(pages()[name])
    page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    printed = subprocess.run(
        [reader, "-layout", tmp_path / "report.pdf", "-"], capture_output=True, encoding="utf-8", check=True
    ).stdout
    sheets = printed.split("\f")[:-1]
    assert len(sheets) > 2
    for row in page.locator("tbody tr").all()[-30:]:
        figures = re.findall(r"\d[\d,.]*", row.inner_text())
        assert all(figure in printed for figure in figures)
    if name.startswith("internal"):
        assert all("INTERNAL" in sheet for sheet in sheets)


# --- a thousand labels ---


def test_a_thousand_labels_stay_labels_on_a_page(opened):
    page = opened(public_page(labelled()))
    assert page.heard == []
    shown = page.eval_on_selector_all("tbody th[scope=row] .label", "all => all.map(one => one.textContent)")
    assert sorted(shown) == sorted([*labels(), "All"])
    tags = page.eval_on_selector_all("*", "all => [...new Set(all.map(one => one.localName))]")
    assert not set(tags) & {"script", "iframe", "object", "embed", "form", "input", "svg", "link", "base", "i", "b"}
    # The data's own labels are beyond what plots can show: the only image left is the distribution.
    assert page.locator("img").count() == 1
    attributes = page.eval_on_selector_all("*", "all => [...new Set(all.flatMap(one => one.getAttributeNames()))]")
    assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert page.evaluate("document.styleSheets.length") == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_thousand_labels_stay_text_in_a_workbook(tmp_path):
    write_workbook(labelled().tables, tmp_path / "tables.xlsx", ["title"], {})
    book = openpyxl.load_workbook(tmp_path / "tables.xlsx")
    cells = [row[0] for row in book.worksheets[1].iter_rows(min_row=3)]
    assert sorted(cell.value for cell in cells) == sorted([*labels(), "All"])
    every = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
    assert {cell.data_type for cell in cells} == {"s"}
    assert {cell.data_type for cell in every} <= {"s", "n"}
    assert not any(cell.hyperlink for cell in every)


def test_a_thousand_labels_stay_text_in_a_csv_file(tmp_path):
    """What a spreadsheet would run has one apostrophe before it; taken off, it is the label again."""
    write_frame(labelled().tables, tmp_path / "tables.csv")
    with (tmp_path / "tables.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    written = [row["g"] for row in rows]
    runs = re.compile(r"[=+\-@\t\r＝＋－＠]")
    number = re.compile(r"[+\-][0-9.,]+")
    assert not [text for text in written if runs.match(text) and not number.fullmatch(text)]
    read = [text[1:] if re.match(r"'+[=+\-@＝＋－＠]", text) else text for text in written]
    assert sorted(read) == sorted([*labels(), "All"] * 2)


def test_the_labels_are_what_they_should_be():
    assert len(set(labels())) == len(labels()) >= LABELS - 20
    starts = np.array([label[0] for label in labels()])
    assert all((starts == sign).any() for sign in "=+-@<'\"&{$")
