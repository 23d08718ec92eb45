"""Takes screenshots of the report of `byzantium demo`: `python scripts/screenshots.py`.

Writes docs/pictures/report-*.png and docs/report.png, which the README shows. Needs chromium and
playwright. The demo takes half a minute; with --folder its results are stored, and used again.
`--alt` prints the alternative text of each picture.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
WIDTH, HEIGHT = 900, 770
# Sharp on screens with twice as many pixels.
SCALE = 2
ALTS = {
    "pictures/report-worst.png": (
        "The first screen of the report: the best rule under its worst attack, and a table of "
        "rules by attacks, colored by accuracy."
    ),
    "pictures/report-curves.png": (
        "The test accuracy of every rule over the rounds, under each attack."
    ),
    "pictures/report-trust.png": (
        "A map of how much each of 25 workers counted, over the rounds: Krum gives all weight to "
        "one of the attackers, which are the last five rows."
    ),
    "report.png": "The first screen of the report, and beside it how much each worker counted.",
}


def demo(folder: Path) -> Path:
    command = "from byzantium.cli import main; main()"
    subprocess.run([sys.executable, "-c", command, "demo", "--out", str(folder)], check=True)
    return folder / "report.html"


def until(page: Page, expression: str) -> None:
    """Wait until an expression is true; the page's policy forbids Playwright's own way."""
    deadline = time.monotonic() + 60
    while not page.evaluate(f"!!({expression})"):
        if time.monotonic() > deadline:
            raise TimeoutError(expression)
        page.wait_for_timeout(50)


def part(page: Page, first: str, last: str) -> Image.Image:
    """The page from the top of one element to the bottom of another."""
    for selector in (first, last):
        page.locator(selector).scroll_into_view_if_needed()
        page.wait_for_timeout(600)  # charts are drawn when they come into view
    page.evaluate("scrollTo(0, 0)")
    top, bottom = (
        page.evaluate(f"document.querySelector('{selector}').getBoundingClientRect().{side}")
        for selector, side in ((first, "top"), (last, "bottom"))
    )
    clip = {"x": 0.0, "y": top - 6, "width": float(WIDTH), "height": bottom - top + 18}
    return Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True)))  # type: ignore[arg-type]


def screenshots(report: Path) -> dict[str, Image.Image]:
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT},
            device_scale_factor=SCALE,
            color_scheme="light",
        )
        page.goto(report.as_uri())
        until(page, "'ready' in document.documentElement.dataset")
        # The times of the runs depend on the machine.
        page.evaluate("document.getElementById('facts').hidden = true")
        first = Image.open(io.BytesIO(page.screenshot()))
        curves = part(page, "#curves", "#explorer")
        trust = part(page, "#about", "#heat")
        browser.close()
    return {
        "pictures/report-worst.png": first,
        "pictures/report-curves.png": curves,
        "pictures/report-trust.png": trust,
        "report.png": beside(first, trust),
    }


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Two images side by side, at one pixel per pixel of the page, as high as the left one."""
    sheet = Image.new("RGB", (left.width + right.width, left.height), left.getpixel((2, 2)))
    sheet.paste(left, (0, 0))
    sheet.paste(right, (left.width, (left.height - right.height) // 2))
    return sheet.resize((sheet.width // SCALE, sheet.height // SCALE), Image.Resampling.LANCZOS)


def write(images: dict[str, Image.Image]) -> None:
    for name, image in images.items():
        # A palette that also covers the colors of small elements.
        method, none = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        indexed = image.convert("RGB").quantize(256, method, kmeans=3, dither=none)
        indexed.save(DOCS / name, optimize=True)
        print(f"{name}: {image.width} x {image.height}, {(DOCS / name).stat().st_size // 1000} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of the demo's results; a temporary one")
    parser.add_argument("--alt", action="store_true", help="print the texts instead")
    arguments = parser.parse_args()
    if arguments.alt:
        print("\n".join(f"{name}: {alt}" for name, alt in ALTS.items()))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "demo"
        write(screenshots(demo(folder.resolve())))


if __name__ == "__main__":
    main()
