"""Pictures of a release's two reports: `python docs/screenshots.py svysynth-demo/release-1`, after `make demo`.

Needs Chromium or Chrome. They show the top of each page, at the width of a desk's screen and of a telephone's.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).parent
CHROMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZES = {"desktop": (1280, 2300), "phone": (390, 1700)}
LARGEST = 400_000
"""Bytes of a picture."""


def take(browser: Browser, report: Path, width: int, height: int) -> Image.Image:
    """The top of a page as it looks in a window of this width."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.goto(report.resolve().as_uri())
    picture = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    return picture.convert("RGB")


def save(picture: Image.Image, path: Path) -> None:
    """Write a picture with as many colours as leave it small."""
    for colours in (256, 128, 64, 32, 16):
        picture.quantize(colours).save(path, optimize=True)
        if path.stat().st_size <= LARGEST:
            return
    raise SystemExit(f"{path.name} is too large")


def main(release: Path) -> None:
    """Take all pictures of a release."""
    chrome = next((found for name in CHROMES if (found := shutil.which(name))), None)
    if chrome is None:
        raise SystemExit(f"install one of {', '.join(CHROMES)}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chrome, args=["--no-sandbox"])
        for folder in ("public", "internal"):
            for name, (width, height) in SIZES.items():
                picture = take(browser, release / folder / "report.html", width, height)
                save(picture, HERE / f"report-{folder}-{name}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
