"""The course in JupyterLab, as a student sees it: opened by `make lab`, run from the menu.

And live slides: RISE shows a notebook in large type, runs its cells, and opens the notes.
"""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.browser.lab import LONG, OPEN, WATCH, Notebook, command, copy_course, serving

# JupyterLab starts slowly beside other tests.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

WEEK = "week01_ranks_and_collectives.ipynb"
LIVE = """
import time
from pathlib import Path
def count(worker):
    for step in worker.track(range(600)):
        worker.log(step=step, loss=1 / (1 + step))
        time.sleep(0 if Path("seen").exists() else 0.1)
launch(count, workers=2, live="loss")
"""
FOLDED = "<details><summary>After you have predicted</summary>\n\nBoth need 16 bytes.\n\n</details>"
SMALL = [
    new_markdown_cell("# Small"),
    new_code_cell("""
from helpers import launch, plots, side_by_side
import time
def draw(slope, offset):
    return plots.curves({"line": ([0, 1], [offset, offset + slope])})
"""),
    new_code_cell("plots.Explorer(draw, {'slope': [1, 2, 3], 'offset': [0, 5]})"),
    new_code_cell("plots.Explorer(draw, {'slope': range(6), 'offset': [0]}, play='slope')"),
    new_markdown_cell(FOLDED),
    new_code_cell("side_by_side(['state'], prediction=[None], formula=[16], measured=[16])"),
    new_code_cell(LIVE),
    new_code_cell("""
def wait(worker):
    print("at work")
    while True:
        time.sleep(0.05)
launch(wait, workers=2)
"""),
    new_code_cell("print(list(launch(lambda worker: worker.rank, workers=2)))"),
]
# RISE 0.43 in JupyterLab 4.6. None of these concerns the course's own cells.
RISE = (
    "Shared module @jupyterlab/console",  # so ipywidgets do not draw: a picture is in their place
    "Exception opening new comm",  # the same
    "Maximum call stack size exceeded",  # on opening any notebook
    r"\.css",  # RISE looks for a style sheet with the notebook's name
    "Failed to load resource.* 404",  # it checks links to files in a traceback
)
SHOWN = "section.present > section.present"
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


SLIDES = [
    on_slide(new_markdown_cell("# Small"), "slide"),
    on_slide(new_markdown_cell("In class. Wait."), "notes"),
    on_slide(new_code_cell("from helpers import launch, plots"), "subslide"),
    on_slide(new_code_cell(LIVE), "subslide"),
    on_slide(
        new_code_cell("plots.Explorer(lambda n: plots.bars({'a': n}), {'n': [1, 2]})"), "subslide"
    ),
]


@pytest.fixture(scope="module")
def course(browser, tmp_path_factory):
    """A copy of the course with two small notebooks; `browser` first, which may skip."""
    folder = copy_course(tmp_path_factory.mktemp("copied") / "course")
    kernel = {"name": "python3", "display_name": "", "language": "python"}
    week = json.loads((folder / "notebooks" / WEEK).read_text(encoding="utf-8"))
    about = {"kernelspec": kernel, "rise": week["metadata"]["rise"]}
    for cells, name in ((SMALL, "work/small.ipynb"), (SLIDES, "notebooks/slides.ipynb")):
        nbformat.write(new_notebook(cells=cells, metadata=about), folder / name)
    return folder


@pytest.fixture(scope="module")
def address(course, tmp_path_factory):
    """The address and the token of a JupyterLab on the copy."""
    with serving(course, tmp_path_factory.mktemp("private")) as address:
        yield address


def presented(page):
    """Wait until RISE shows its slides."""
    page.locator("section.present").first.wait_for(timeout=LONG)
    page.wait_for_load_state("networkidle")


def read(notebook):
    """The cells of a notebook; the student's has no cells of the speaker's notes."""
    return nbformat.read(notebook, as_version=4).cells


def index(cells, text: str) -> int:
    """The number of the only cell with this text."""
    (found,) = [number for number, cell in enumerate(cells) if text in cell.source]
    return found


def loaded(picture):
    """Wait until a picture has pixels."""
    picture.wait_for()
    handle = picture.element_handle()
    picture.page.wait_for_function("e => e.complete && e.naturalWidth > 0", arg=handle)


def test_week_1_shows_its_drawing_and_its_slides_are_large(page, course, address):
    cells = read(course / "notebooks" / WEEK)
    page.goto(f"{address[0]}/?token={address[1]}")
    page.locator(".jp-DirListing-item", has_text="week01_ranks").dblclick()
    notebook = Notebook(page)
    assert page.get_by_text("Jupyter news").count() == 0  # the question at a first start
    drawing = notebook.cell(index(cells, "../figures/cluster.png")).locator("img")
    loaded(drawing)
    assert "four ranks" in drawing.get_attribute("alt")
    page.locator(f"{OPEN} .jp-Notebook").focus()
    page.context.guard.known = RISE
    with page.context.expect_page() as opened:  # RISE alone would show them in half of the window
        page.keyboard.press("Alt+r")
    slides = opened.value
    assert "/rise/notebooks/week01_ranks" in slides.url
    presented(slides)
    slides.wait_for_function("getComputedStyle(document.querySelector('p')).fontSize >= '24px'")
    seen = []
    for _ in range(12):
        seen.append(slides.evaluate(MEASURE, SHOWN))
        slides.keyboard.press("Space")
        slides.wait_for_timeout(100)
    assert slides.locator(".jp-Notebook-footer").first.is_hidden()  # "Click to add a cell."
    assert {slide["scrolls"] for slide in seen} == {"auto"}
    assert max(slide["bottom"] for slide in seen) <= 720
    sizes = {kind: {slide[kind] for slide in seen} - {None} for kind in ("p", "code", "table")}
    assert min(sizes["p"]) >= 24
    assert min(sizes["code"]) >= 20
    assert min(sizes["table"]) >= 18


def test_a_student_s_folder_opens_with_its_pictures(page, course, address):
    cells = read(course / "work" / WEEK)
    assert "default_url=/lab/tree/work" in command(course, "", at="work")
    start = Notebook.open(page, address, "work/START.ipynb")
    page.locator(".jp-DirListing-item", has_text="week01_ranks").wait_for()
    start.run(3)
    start.ran(3)
    assert "global_mean" in start.cell(3).locator(".jp-OutputArea").inner_text()
    start.cell(0).get_by_role("link", name="Ranks and collectives").click()
    page.locator(f"{OPEN} strong", has_text="How do many processors").wait_for()
    notebook = Notebook(page)
    loaded(notebook.cell(index(cells, "../figures/cluster.png")).locator("img"))


def test_cells_run_from_the_menu_sliders_redraw_and_stop_stops(page, course, address):
    notebook = Notebook.open(page, address, "work/small.ipynb")
    page.evaluate(WATCH, ".jp-OutputArea")
    notebook.cell(8)
    notebook.menu("Run", "Run All Above Selected Cell")
    notebook.cell(6)  # look at this cell while it runs: bars fill, and a curve grows
    page.wait_for_function(
        "window.shown.widths.size > 2 && window.shown.pictures.size > 1", timeout=LONG
    )
    (course / "work" / "seen").touch()
    waiting = notebook.cell(7)
    at_work = waiting.locator(".jp-OutputArea-output").get_by_text("at work").first
    at_work.wait_for(timeout=LONG)
    page.locator(
        "[data-jp-item-name=interrupt] button, [data-jp-item-name=interrupt]"
    ).first.click()
    notebook.idle()
    error = waiting.locator("[data-mime-type='application/vnd.jupyter.stderr']")
    error.wait_for()
    assert error.text_content().strip() == "KeyboardInterrupt: the ranks are stopped."
    again = notebook.run(8)
    notebook.ran(8)
    again.get_by_text("[0, 1]").wait_for()

    for number in (4, 5):  # a folded answer opens: of a text cell, and of an output
        answer = notebook.cell(number).locator("details").first
        inside = answer.locator(":scope > *:not(summary)").first
        assert not inside.is_visible()
        answer.locator("summary").click()
        assert inside.is_visible()

    explorer = notebook.cell(2)
    picture = explorer.locator(".widget-html img")
    loaded(picture)
    seen = {picture.get_attribute("src")}
    for handle in explorer.locator(".noUi-handle").all():
        handle.press("ArrowRight")
        page.wait_for_function(
            "([e, seen]) => !seen.includes(e.querySelector('.widget-html img').src)",
            arg=[explorer.element_handle(), list(seen)],
        )
        seen.add(picture.get_attribute("src"))
    assert len(seen) == 3
    assert explorer.locator(".jp-OutputArea-output img").count() == 1  # not the still form too

    played = notebook.cell(3)
    picture = played.locator(".widget-html img")
    loaded(picture)
    first = picture.get_attribute("src")
    played.locator(".widget-play button").first.click()
    page.wait_for_function(
        "([e, first]) => e.querySelector('.widget-html img').src !== first",
        arg=[played.element_handle(), first],
    )

    # The saved notebook has the picture alone: no page looks for the sliders of an ended kernel.
    notebook.saved()
    [output] = read(course / "work" / "small.ipynb")[2].outputs
    assert set(output.data) == {"image/png", "text/plain"}


def test_a_slide_has_notes_and_its_cell_runs_with_bars_and_a_curve(page, course, address):
    page.context.guard.known = RISE
    page.goto(f"{address[0]}/rise/notebooks/slides.ipynb?token={address[1]}")
    presented(page)
    page.locator("section.present h1").first.click()
    page.keyboard.press("Escape")
    with page.context.expect_page() as opened:
        page.keyboard.press("t")
    opened.value.wait_for_function(
        "document.querySelector('.speaker-controls-notes .value')?.innerText.includes('Wait.')",
        timeout=LONG,
    )
    opened.value.close()
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
            (course / "notebooks" / "seen").touch()
        page.locator(f"{SHOWN} .jp-InputPrompt", has_text=done).wait_for(
            state="attached", timeout=LONG
        )
        assert page.url.endswith(f"slide-0-{number}")
    assert page.locator(f"{SHOWN} .jp-OutputArea img").count() == 1  # the explorer's first picture
