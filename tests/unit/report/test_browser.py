"""The HTML report in a real browser: it fits a phone and a desk, and loads nothing."""

import html
import re
import shutil
import subprocess

import pytest

from gradverify.report.html import render_html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 1200)
"""Pixels: a phone, a desk."""

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
LOOK = """
<script>
addEventListener("load", () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement, said = [];
    const within = (rect) => rect.right <= root.clientWidth + 1;
    for (const pill of page.querySelectorAll(".targets .mark"))
      if (pill.getBoundingClientRect().right > pill.parentElement.getBoundingClientRect().right + 1)
        said.push(pill.textContent);
    const pictures = [...page.querySelectorAll("svg")].map((svg) => svg.getBoundingClientRect());
    document.body.append(`[${[frame.width, root.scrollWidth, page.querySelectorAll("section").length,
      pictures.length, pictures.filter(within).length, said.length, page.scripts.length]}]`);
  }
});
</script>
"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome to open it in")


@pytest.fixture(scope="module")
def seen(samples, tmp_path_factory):
    """What the browser lays out, a line for each width."""
    folder = tmp_path_factory.mktemp("browser")
    page, profile = folder / "page.html", f"--user-data-dir={folder / 'profile'}"
    inner = f'height="900" srcdoc="{html.escape(render_html(samples.EVERYTHING), quote=True)}"'
    frames = "".join(f'<iframe width="{width}" {inner}></iframe>' for width in WIDTHS)
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{LOOK}{frames}</body>")
    command = [BROWSER, *QUIET, profile, "--window-size=1300,2000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    found = re.findall(r"\[(\d+(?:,\d+){6})\]", done.stdout)
    return {int(line.split(",")[0]): [int(word) for word in line.split(",")[1:]] for line in found}


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits(samples, seen, width):
    page, sections, pictures, pictures_within, marks_over, scripts = seen[width]
    assert page <= width, "the page scrolls sideways"
    assert sections == len(samples.EVERYTHING.targets)
    assert pictures_within == pictures > 0
    assert marks_over == 0, "a verdict runs into the name beside it"
    assert scripts == 0
