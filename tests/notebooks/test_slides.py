"""The cells as slides: where slides begin, what the speaker gets, and how a deck is written."""

import base64
import json
import re
import struct
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ROOT, ci
from tests.notebooks.test_format import NOTEBOOKS

ASKS = re.compile(r"^prediction_\w+ = None", re.M)
RISE = {"scroll", "center", "theme", "transition", "margin", "slideNumber"}
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def slides():
    return ci("slides")


def read(path: Path):
    return nbformat.read(path, as_version=4)


def kind(cell) -> str:
    return cell.metadata.slideshow.slide_type


def text(source, slide_type="-"):
    metadata = {"slideshow": {"slide_type": slide_type}}
    return {"cell_type": "markdown", "id": "a", "metadata": metadata, "source": source}


def code(source, slide_type="-", outputs=()):
    more = {"cell_type": "code", "outputs": list(outputs), "execution_count": 1}
    return text(source, slide_type) | more


@every_notebook
def test_sections_begin_slides(path):
    cells = read(path).cells
    assert kind(cells[0]) == "slide"
    sections = [c for c in cells if c.cell_type == "markdown" and c.source.startswith("## ")]
    assert {kind(cell) for cell in sections} <= {"slide", "skip"}
    assert sum(kind(cell) == "slide" for cell in cells) - 1 <= len(sections) + 2


@every_notebook
def test_a_prediction_is_on_the_slide_of_its_question(path):
    asking = [cell for cell in read(path).cells if ASKS.search(cell.source)]
    assert [cell.id for cell in asking if cell.cell_type == "code" and kind(cell) != "-"] == []


@every_notebook
def test_the_speaker_has_notes(path):
    cells = read(path).cells
    notes = [cell for cell in cells if kind(cell) == "notes"]
    assert 4 <= len(notes) <= 9
    for cell in notes:
        assert cell.cell_type == "markdown"
        assert cell.source.startswith("In class. ")
        assert 10 <= len(cell.source.split()) <= 60
    # A note is below what it is about: right below a text that is on a slide.
    above = [cells[cells.index(cell) - 1] for cell in notes]
    assert [c.id for c in above if c.cell_type != "markdown" or kind(c) in ("skip", "notes")] == []


@every_notebook
def test_live_slides_look_alike(path):
    settings = read(path).metadata.rise
    assert set(settings) == RISE
    assert settings == read(NOTEBOOKS[0]).metadata.rise
    assert settings.theme == "white"  # others ask another host for fonts


def test_live_slides_load_nothing_and_the_project_s_look_alike():
    """tests/browser/test_lab.py measures the type."""
    assert "http" not in (ROOT / "notebooks" / "rise.css").read_text(encoding="utf-8")
    assert (ROOT / "notebooks/project/rise.css").read_text() == '@import url("../rise.css");\n'


def test_slides_of_cells(slides):
    cells = [
        text("# T", "slide"), code("import torch"), text("a", "subslide"), text("b"),
        text("c", "skip"), text("note", "notes"), code(""), text("d", "slide"),
        code("from a import b\n\n\ndef f():\n    return b"),
        code("check.f(f)", outputs=[{"data": {"text/plain": "… f: not written yet"}}]),
        text("deeper", "subslide"),
    ]  # fmt: skip
    cells[-1]["metadata"]["tags"] = ["deeper"]
    found = [[[c["source"][:6] for c in one] for one in stack] for stack in slides.stacks(cells)]
    assert found == [[["# T"], ["a", "b", "note"]], [["d", "from a"]]]


def test_imports_alone_and_exercises_as_they_were_asked_are_left_out(slides):
    cell = code("import torch\ntorch.__version__", outputs=[{"output_type": "stream"}])
    assert not slides.only_imports(cell, cell["source"])
    for source in ("import torch\nSIZE = 1", "from a import b"):
        assert slides.only_imports(code(source), source)
    for source in ("x = 1\nimport torch", "import a\nclass B: ...", "importance = 1"):
        assert not slides.only_imports(code(source), source)
    asked, solved = ([{"data": {"text/plain": words}}] for words in ("… not written yet", "✓ f"))
    for source, outputs, left in (("check.f(f)", asked, True), ("check.f(f)", solved, False),
                                  ("f()", asked, False)):  # fmt: skip
        assert slides.only_asked(code(source, outputs=outputs), source) == left


def test_of_a_cell_that_only_draws_or_is_folded_the_output_is_shown(slides, tmp_path):
    imports = code("from helpers.plots.a import (\n    b,\n    c,\n)\nfrom helpers.plots import d")
    names = slides.drawing([imports])
    assert names == {"b", "c", "d"}
    for source in ("plots.curves(x)", "y = [1]\nc(y)", "runs.frame().plot(x=1)"):
        assert slides.only_draws(source, names)
    for source in (
        "plots.curves(launch(f))",
        "e(y)",
        "def f(): ...\nc(f)",
        "c(y)\ny",
        "!ls",
        "# a",
    ):
        assert not slides.only_draws(source, names)
    cells = [
        text("# T", "slide"),
        code("plots.a()", outputs=[{"output_type": "stream", "text": "o"}]),
    ]
    cells += [cells[1] | {"source": "assert 1"}, code("assert 2")]
    for cell in cells[2:]:
        cell["metadata"] = {"jupyter": {"source_hidden": True}}
    (((_, drawn, folded),),) = slides.stacks(cells)
    assert folded["source"] == ""
    page = slides.cells_of.unit(drawn, tmp_path)
    assert page == '<div class="unit code">\n<pre class="output terminal ">o</pre></div>'
    assert cells[1]["source"] == "plots.a()"


def test_the_name_and_the_question_of_a_notebook(slides):
    cells = [text(["## A & B\n", "\n", "**Why** not?\n", "**What is it?**\n", "**And?**"])]
    assert (slides.title(cells), slides.question(cells)) == ("A & B", "What is it?")
    assert slides.question([text("# A")]) == ""


SOURCE = '''@decorated
def f(x):
    """Text
    of f."""
    y = x
    # about the sum
    return y + 1


!torchrun program.py
z = f(
    1
)'''


def test_a_slide_of_code_begins_with_a_statement(slides):
    lines = SOURCE.split("\n")
    found = {lines[n]: depth for n, depth in slides.cells_of.cuts(SOURCE).items()}
    assert found == {
        "    y = x": 1,
        "    # about the sum": 1,
        "!torchrun program.py": 0,
        "z = f(": 0,
    }
    assert slides.cells_of.cuts("a ! b\n\nc") == {2: 0}  # no Python: below an empty line
    assert slides.cells_of.cuts("a ! b\nc\n\n\nd") == {4: 0}
    assert slides.cells_of.cuts("# what x is\nx = 1") == slides.cells_of.cuts("# a comment") == {}


def test_a_slide_may_begin_in_each_part_of_a_statement(slides):
    """But not with the first line of a part, which would leave its head alone."""
    source = """\
if a:
    b
    c
elif d:
    e
    if f:
        g
        h
else:
    i
try:
    j
except k:
    l
finally:
    m
# n
# o
@p
class Q:
    r = 1
    %time s
for t in u: v
"""
    lines = [line.strip() for line in source.split("\n")]
    found = {lines[n]: depth for n, depth in slides.cells_of.cuts(source).items()}
    assert found == {
        "c": 1, "elif d:": 0, "if f:": 1, "h": 2, "i": 1, "try:": 0, "except k:": 0, "m": 1,
        "# n": 0, "%time s": 1, "for t in u: v": 0,
    }  # fmt: skip


def test_lines_of_code_are_cut_where_they_are_written(slides):
    page = slides.cells_of.code(SOURCE)
    lines = re.findall(r'<span class="line"(?: data-cut=(\d))?>(.*?)\n</span>', page, re.S)
    words = [re.sub("<[^>]+>", "", line) for _, line in lines]
    assert "\n".join(words) == SOURCE.replace("\n\n\n", "\n\n")
    assert {w: cut for (cut, _), w in zip(lines, words, strict=True) if cut} == {
        "    y = x": "1", "    # about the sum": "1", "!torchrun program.py": "0", "z = f(": "0",
    }  # fmt: skip


def test_texts_and_links_lead_to_decks_or_to_other_hosts(slides, tmp_path):
    def html(source):
        return slides.cells_of.markdown(source, tmp_path)

    assert "<math" in html("$x^2$")
    block = html("$$\\frac1n$$")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in block
    assert "<mfrac>" in block
    links = "[a](https://a.b/c.ipynb) [b](#here) [c](project/d.ipynb#e) [f](../data.csv) "
    assert html(links + "[g](mailto:h@i)") == (
        '<p><a href="https://a.b/c.ipynb">a</a> <a href="#here">b</a> <a href="d.html">c</a> f '
        '<a href="mailto:h@i">g</a></p>\n'
    )


def test_the_size_of_a_picture(slides):
    """A PNG of 60 by 40 pixels, of which two make one on the page."""
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", 60, 40) + bytes(40)
    png = base64.b64encode(head).decode()

    def shown(metadata=None, **data):
        kinds = {kind.replace("_", "/"): text for kind, text in data.items()}
        one = {"output_type": "display_data", "data": kinds, "metadata": metadata or {}}
        return slides.cells_of.output(one, "")

    src = f'src="data:image/png;base64,{png}"'
    plain = f'<div class="output"><img alt="" width="30" height="20" {src}></div>'
    assert shown(image_png=[png[:9] + "\n", png[9:] + "\n"]) == plain
    about = {"image/png": {"width": 15, "height": 10, "alt": 'a "b"'}}
    page = f'<div class="output"><img alt="a &quot;b&quot;" width="15" height="10" {src}></div>'
    assert shown(about, image_png=png, text_markdown="*a*", text_plain="<Figure>") == page
    html = f"<style>p {{}}</style><img {src} height='7'/>"
    own = f"<img height='7' {src}>"
    assert shown(text_html=html, image_png=png) == f'<div class="output">{own}</div>'
    sized = f'<div class="output"><img  width="30" height="20" {src}></div>'
    assert shown(text_html=f"<img {src}>") == sized
    folded = f"<details><img src='data:image/png;base64,{png}' alt='a/b' width='100'></details>"
    assert 'alt=\'a/b\'  width="100" height="67"' in shown(text_html=folded)
    page = slides.cells_of.markdown("![words](../figures/cluster.png)", ROOT / "notebooks")
    assert re.search(r'<img alt="words" width="\d+" height="\d+" src="data:image/png;base64,', page)
    assert shown(text_markdown="*a*", text_plain="a").startswith('<div class="output"><p><em>a')
    assert shown(text_plain="a<b") == '<pre class="output terminal ">a&lt;b</pre>'
    assert shown(application_json="{}") == ""


def test_a_cell_of_code_with_what_it_printed(slides, tmp_path):
    stream = {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]}
    cell = code("f(1 < 2)", outputs=[stream, stream | {"text": " "}])
    page = slides.cells_of.unit(cell, tmp_path)
    assert page.startswith('<div class="unit code"><pre class="input"><code><span class="line">')
    assert page.endswith('\n<pre class="output terminal ">a\nb</pre></div>')
    assert re.sub("<[^>]+>", "", page) == "f(1 &lt; 2)\n\na\nb"
    words = slides.cells_of.unit(text("*a*"), tmp_path)
    assert words == '<div class="unit text"><p><em>a</em></p>\n</div>'


def test_what_a_program_printed(slides):
    red = slides.cells_of.terminal("\x1b[31mred\x1b[0m <b>\n")
    assert 'class="ansi-red-fg">red</span> &lt;b&gt;</pre>' in red
    assert slides.cells_of.terminal("\x1b[0m\n ") == ""
    shown = slides.cells_of.output({"output_type": "error", "traceback": ["one", "two"]}, "")
    assert '<pre class="output terminal error">one\ntwo</pre>' in shown


@pytest.fixture
def built(slides, tmp_path):
    cells = [text("# Week 1 · Title\n\n**Why?**", "slide"), text("In class. ask", "notes")]
    folder = tmp_path / "notebooks"
    (folder / "project").mkdir(parents=True)
    for name in ("week01_a", "week02_b"):
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))
    executed = tmp_path / "executed"
    executed.mkdir()
    (executed / "week02_b.ipynb").write_text(json.dumps({"cells": [text("# New", "slide")]}))
    return slides.build(tmp_path, executed=executed).parent


def test_a_deck_for_each_notebook_and_nothing_from_elsewhere(slides, built):
    listing = (built / "index.html").read_text(encoding="utf-8")
    assert '<a href="week01_a.html">Week 1 · Title</a><p>Why?</p>' in listing
    assert "<h1>New</h1>" in (built / "week02_b.html").read_text(encoding="utf-8")
    page = (built / "week01_a.html").read_text(encoding="utf-8")
    assert '<aside class="notes"><p>In class. ask</p>' in page
    for file in built.rglob("*.*"):
        source = file.read_text(encoding="utf-8")
        assert not re.search(r"""(?:src|href)=["'](?:https?:)?//|@import|url\(["']?http""", source)
    for name in re.findall(r'(?:src|href)="(deck/[^"]+)"', page):
        assert (built / name).is_file()


def test_without_reveal_there_is_a_hint(slides, monkeypatch, tmp_path):
    monkeypatch.setattr(slides.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="run `make setup`"):
        slides.build(tmp_path)


def test_words_choose_the_decks(slides, built):
    root = built.parents[1]
    slides.build(root, words=["week02"])
    assert [path.stem for path in built.glob("week*.html")] == ["week02_b"]
    assert "<h1>Week 1 · Title</h1>" in (built / "week02_b.html").read_text("utf-8")
    with pytest.raises(SystemExit, match="no notebook's name contains 'week07'"):
        slides.build(root, words=["week07"])
