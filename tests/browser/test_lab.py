"""The course in JupyterLab, as a student sees it: opened by `make lab`, run from the menu."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.browser.lab import OPEN, WATCH, Notebook, command, copy_course, serving

# Week 1 takes half a minute of a free machine, and much longer beside other tests.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

WEEK = "week01_ranks_and_collectives.ipynb"
SMALL = [
    """
from helpers import launch, plots
import time
def draw(slope, offset):
    return plots.curves({"line": ([0, 1], [offset, offset + slope])})
""",
    "plots.Explorer(draw, {'slope': [1, 2, 3], 'offset': [0, 5]})",
    "plots.Explorer(draw, {'slope': range(6), 'offset': [0]}, play='slope')",
    """
def wait(worker):
    print("at work")
    while True:
        time.sleep(0.05)
launch(wait, workers=2)
""",
    "print(list(launch(lambda worker: worker.rank, workers=2)))",
]


@pytest.fixture(scope="module")
def course(browser, tmp_path_factory):
    """A copy of the course; `browser` first, which skips where there is none."""
    folder = copy_course(tmp_path_factory.mktemp("copied") / "course")
    cells = [new_markdown_cell("# Small"), *map(new_code_cell, SMALL)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), folder / "work" / "small.ipynb")
    return folder


@pytest.fixture(scope="module")
def address(course, tmp_path_factory):
    """The address and the token of a JupyterLab on the copy."""
    with serving(course, tmp_path_factory.mktemp("private")) as address:
        yield address


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


def test_the_tree_opens_and_week_1_shows_its_drawing(page, course, address):
    cells = read(course / "notebooks" / WEEK)
    page.goto(f"{address[0]}/?token={address[1]}")
    page.locator(".jp-DirListing-item", has_text="week01_ranks").dblclick()
    notebook = Notebook(page)
    assert page.get_by_text("Jupyter news").count() == 0  # the question at a first start
    drawing = notebook.cell(index(cells, "../figures/cluster.png")).locator("img")
    loaded(drawing)
    assert "four ranks" in drawing.get_attribute("alt")
    page.locator(f"{OPEN} .jp-Notebook").focus()
    with page.context.expect_page() as slides:  # RISE alone would show them in half of the window
        page.keyboard.press("Alt+r")
    assert "/rise/notebooks/week01_ranks" in slides.value.url
    slides.value.close()


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


def test_week_1_runs_whole_from_the_menu(page, course, address):
    cells = read(course / "work" / WEEK)
    notebook = Notebook.open(page, address, f"work/{WEEK}")
    page.evaluate(WATCH, ".jp-OutputArea")
    notebook.menu("Run", "Run All Cells")
    notebook.cell(index(cells, 'live="loss", talk'))  # look at this cell while it runs
    last = max(number for number, cell in enumerate(cells) if cell.cell_type == "code")
    notebook.ran(last)
    widths, pictures = page.evaluate("[window.shown.widths.size, window.shown.pictures.size]")
    assert widths > 1  # bars filled; test_live.py sees them move, in a cell that takes its time
    assert pictures > 0  # and curves were drawn

    notebook.saved()
    for cell in read(course / "work" / WEEK):
        if cell.cell_type == "code":
            errors = [output for output in cell.outputs if output.output_type == "error"]
            assert cell.execution_count, cell.source
            assert bool(errors) == ("raises-exception" in cell.metadata.get("tags", ())), errors

    # A slider, moved by its keys, draws another picture.
    explorer = notebook.cell(index(cells, "plots.Explorer("))
    before = explorer.locator(".widget-html img").get_attribute("alt")
    explorer.locator(".noUi-handle").last.press("ArrowRight")
    explorer.locator(".widget-html img[alt^='128 GPUs']").wait_for()
    assert before.startswith("64 GPUs")

    # A folded answer opens: of a text cell, and of an output.
    for number in (index(cells, "Both need 16 bytes"), index(cells, '"state in fp32"')):
        answer = notebook.cell(number).locator("details").first
        inside = answer.locator(":scope > *:not(summary)").first
        assert not inside.is_visible()
        answer.locator("summary").click()
        assert inside.is_visible()


def test_sliders_redraw_and_stop_stops(page, course, address):
    notebook = Notebook.open(page, address, "work/small.ipynb")
    notebook.run(1)
    explorer = notebook.run(2)
    notebook.ran(2)
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

    played = notebook.run(3)
    notebook.ran(3)
    picture = played.locator(".widget-html img")
    loaded(picture)
    first = picture.get_attribute("src")
    played.locator(".widget-play button").first.click()
    page.wait_for_function(
        "([e, first]) => e.querySelector('.widget-html img').src !== first",
        arg=[played.element_handle(), first],
    )

    waiting = notebook.run(4)
    waiting.locator(".jp-OutputArea-output").get_by_text("at work").first.wait_for()
    page.locator(
        "[data-jp-item-name=interrupt] button, [data-jp-item-name=interrupt]"
    ).first.click()
    notebook.idle()
    error = waiting.locator("[data-mime-type='application/vnd.jupyter.stderr']")
    error.wait_for()
    assert error.text_content().strip() == "KeyboardInterrupt: the ranks are stopped."

    again = notebook.run(5)
    notebook.ran(5)
    again.get_by_text("[0, 1]").wait_for()

    # The saved notebook has the picture alone: no page looks for the sliders of an ended kernel.
    notebook.saved()
    [output] = read(course / "work" / "small.ipynb")[2].outputs
    assert set(output.data) == {"image/png", "text/plain"}
