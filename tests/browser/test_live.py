"""Live slides: RISE shows a notebook in large type, runs its cells, and opens the notes."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.browser.lab import LONG, WATCH, copy_course, serving
from tests.conftest import ROOT

pytestmark = pytest.mark.browser

# RISE 0.43 in JupyterLab 4.6. None of these concerns the course's own cells.
KNOWN = (
    "Shared module @jupyterlab/console",  # so ipywidgets do not draw: a picture is in their place
    "Exception opening new comm",  # the same
    "Maximum call stack size exceeded",  # on opening any notebook
    r"\.css",  # RISE looks for a style sheet with the notebook's name
    "Failed to load resource.* 404",  # it checks links to files in a traceback
)
SHOWN = "section.present > section.present"
LIVE = """
import time
from pathlib import Path
def count(worker):
    for step in worker.track(range(600)):
        worker.log(step=step, loss=1 / (1 + step))
        time.sleep(0 if Path("seen").exists() else 0.1)
launch(count, workers=2, live="loss")
"""
# The heights of the slide and of its window, and its types' sizes.
MEASURE = """(shown) => {
  const slide = document.querySelector(shown);
  const size = (kind) => {
    const found = slide.querySelector(kind);
    return found ? parseFloat(getComputedStyle(found).fontSize) : null;
  };
  return {bottom: slide.getBoundingClientRect().bottom, scrolls: getComputedStyle(slide).overflowY,
          p: size("p"), code: size(".cm-line"), table: size("td")};
}"""


def on_slide(cell, kind):
    cell.metadata.slideshow = {"slide_type": kind}
    return cell


@pytest.fixture(scope="module")
def address(browser, tmp_path_factory):
    """A JupyterLab on a copy of the course, with a small notebook; `browser` first: it may skip."""
    folder = copy_course(tmp_path_factory.mktemp("copied") / "course")
    week = ROOT / "notebooks" / "week01_ranks_and_collectives.ipynb"
    cells = [
        on_slide(new_markdown_cell("# Small"), "slide"),
        on_slide(new_markdown_cell("In class. Wait."), "notes"),
        on_slide(new_code_cell("from helpers import launch, plots"), "subslide"),
        on_slide(new_code_cell(LIVE), "subslide"),
        on_slide(
            new_code_cell("plots.Explorer(lambda n: plots.bars({'a': n}), {'n': [1, 2]})"),
            "subslide",
        ),
    ]
    nb = new_notebook(cells=cells)
    nb.metadata.kernelspec = {"display_name": "", "language": "python", "name": "python3"}
    nb.metadata.rise = json.loads(week.read_text(encoding="utf-8"))["metadata"]["rise"]
    nbformat.write(nb, folder / "notebooks" / "small.ipynb")
    with serving(folder, tmp_path_factory.mktemp("private")) as address:
        yield *address, folder / "notebooks"


def present(page, address, name):
    page.goto(f"{address[0]}/rise/notebooks/{name}.ipynb?token={address[1]}")
    page.locator("section.present").first.wait_for(timeout=LONG)
    page.wait_for_load_state("networkidle")


def test_week_1_is_large_and_every_slide_is_within_the_window(page, address):
    present(page, address, "week01_ranks_and_collectives")
    page.wait_for_function("getComputedStyle(document.querySelector('p')).fontSize >= '24px'")
    seen = []
    for _ in range(12):
        seen.append(page.evaluate(MEASURE, SHOWN))
        page.keyboard.press("Space")
        page.wait_for_timeout(100)
    assert page.locator(".jp-Notebook-footer").first.is_hidden()  # "Click to add a cell."
    assert {slide["scrolls"] for slide in seen} == {"auto"}
    assert max(slide["bottom"] for slide in seen) <= 720
    sizes = {kind: {slide[kind] for slide in seen} - {None} for kind in ("p", "code", "table")}
    assert min(sizes["p"]) >= 24
    assert min(sizes["code"]) >= 20
    assert min(sizes["table"]) >= 18


def test_a_cell_runs_on_its_slide_with_bars_and_a_curve(page, address):
    present(page, address, "small")
    page.evaluate(WATCH, "section.present")
    for number, done in enumerate(("[1]:", "[2]:", "[3]:"), 1):
        page.keyboard.press("Space")
        page.wait_for_url(f"**/slide-0-{number}")
        if number == 1:  # later the notebook has the keyboard
            page.locator(f"{SHOWN} .cm-content").click()
        page.locator(f"{SHOWN} .jp-CodeCell.jp-mod-active").wait_for()  # RISE selects it
        page.keyboard.press("Control+Enter")
        if number == 2:  # the bars move, not only from empty to full, and the curve grows
            page.wait_for_function(
                "window.shown.widths.size > 2 && window.shown.pictures.size > 1", timeout=LONG
            )
            (address[2] / "seen").touch()
        page.locator(f"{SHOWN} .jp-InputPrompt", has_text=done).wait_for(
            state="attached", timeout=LONG
        )
        assert page.url.endswith(f"slide-0-{number}")
    assert page.locator(f"{SHOWN} .jp-OutputArea img").count() == 1  # the explorer's first picture


def test_the_speaker_has_notes(page, address, context):
    present(page, address, "small")
    page.locator("section.present h1").first.click()
    page.keyboard.press("Escape")
    with context.expect_page() as opened:
        page.keyboard.press("t")
    view = opened.value
    view.wait_for_function(
        "document.querySelector('.speaker-controls-notes .value')?.innerText.includes('Wait.')",
        timeout=LONG,
    )
