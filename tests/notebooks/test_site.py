"""The site: a small course of two notebooks, built by Sphinx, that reads without a network."""

import base64
import importlib.util
import itertools
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.conftest import ROOT, ci

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
FOLDED = "<details class='answer'><summary>predict first, then open</summary>42</details>"
README = """# A small course

![A drawing](figures/drawing.png)

| week | question | notebook |
|---|---|---|
| 2 | Then? | [Second](notebooks/week02_b.ipynb) |
| 1 | First? | [First](notebooks/week01_a.ipynb) |

Read [the table](figures/table.md) and [the guide](notebooks/guide/README.md).
"""
MODULE = '''"""What the module is for.

A drawing:

    a  ->  b

B  sequences     T  tokens
d  width

inner   what it has inside, in a line that is
        longer
outer   the rest
"""

import os


def home(environ=os.environ):
    """Return the home folder."""
    return environ["HOME"]


def double(x):
    """Return twice x.

    Args:
        x: any number.

    Raises:
        TypeError: x is no number.
    """
    return 2 * x
'''


@pytest.fixture(scope="module")
def site():
    return ci("site")


def notebook(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=list(cells)), path)


def shown(source, **data):
    cell = new_code_cell(source, execution_count=1)
    about = data.pop("about", {})
    kinds = {key.replace("_", "/"): value for key, value in data.items()}
    cell.outputs = [new_output("display_data", kinds, metadata=about)]
    return cell


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    (root / "README.md").write_text(README)
    (root / "figures").mkdir()
    (root / "figures" / "drawing.png").write_bytes(base64.b64decode(PNG))
    (root / "figures" / "table.md").write_text("# A table\n")
    package = root / "helpers" / "small"
    package.mkdir(parents=True)
    (root / "helpers" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "twice.py").write_text(MODULE)
    words = 'A curve & "more"'
    notebook(
        root / "notebooks" / "week01_a.ipynb",
        new_markdown_cell(
            "# Week 1 · First\n\nA formula $\\frac{a}{b}$ and [next](week02_b.ipynb)."
        ),
        new_markdown_cell("$$\\begin{align} x &= 1 \\\\ y &= 2 \\end{align}$$"),
        new_markdown_cell("In class. Ask.", metadata={"slideshow": {"slide_type": "notes"}}),
        shown("plot()", image_png=PNG, about={"image/png": {"alt": words, "width": 300}}),
        shown("answer()", text_html=FOLDED, text_latex=r"\verbatimly{\answer}", text_plain="fold"),
    )
    notebook(
        root / "notebooks" / "week02_b.ipynb",
        new_markdown_cell("# Week 2 · Second"),
        shown("1 + 1", text_plain="2"),
    )
    notebook(root / "notebooks" / "week03_c.ipynb", new_markdown_cell("# Not in the table"))
    guide = root / "notebooks" / "guide"
    guide.mkdir()
    (guide / "README.md").write_text("# The guide\n")
    (guide / "week01.md").write_text("# Week 1\n")
    (guide / "faults.md").write_text("# Faults\n\n[A table](../../figures/table.md)\n")
    return root


@pytest.fixture(scope="module")
def built(site, root):
    """The folder of the small site. The first notebook was executed anew: its answer is 43."""
    nb = nbformat.read(root / "notebooks" / "week01_a.ipynb", as_version=4)
    nb.cells[-1].outputs[0].data["text/html"] = FOLDED.replace("42", "43")
    executed = root / "build" / "executed"
    executed.mkdir(parents=True)
    nbformat.write(nb, executed / "week01_a.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_REPOSITORY", "git@github.com:owner/course.git")
        return site.build(root, executed).parent


class Loads(HTMLParser):
    """What a page loads by itself, and where it leads."""

    def __init__(self, page):
        super().__init__()
        self.loaded, self.links, self.alts = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") not in (
            "next",
            "prev",
            "index",
            "search",
            "canonical",
        ):
            self.loaded.append(given.get("href", ""))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img":
            self.alts.append(given.get("alt"))


def pages(built):
    return {p.relative_to(built).as_posix(): p.read_text("utf-8") for p in built.rglob("*.html")}


def test_every_page_is_there(built):
    names = pages(built).keys()
    wanted = {"index.html", "notebooks/week01_a.html", "notebooks/week02_b.html", "search.html"}
    wanted |= {"plan.html", "replays.html", "reference.html", "reference/small.html"}
    assert [name for name in names if name.startswith("_static/")] == []  # a theme's templates
    wanted |= {f"notebooks/guide/{name}.html" for name in ("README", "week01", "faults")}
    assert wanted <= names


def test_the_weeks_follow_the_readme_s_table(built):
    front = pages(built)["index.html"]
    sidebar = re.findall(r'href="notebooks/(week\d\d_.)\.html"', front)
    assert list(dict.fromkeys(sidebar)) == ["week02_b", "week01_a", "week03_c"]


def test_nothing_is_loaded_from_another_host(built):
    for name, page in pages(built).items():
        foreign = [src for src in Loads(page).loaded if re.match(r"(https?:)?//", src)]
        assert foreign == [], name
    for style in built.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text("utf-8"))
        assert found == [], style


def test_links_within_the_site_lead_somewhere(built):
    for name, page in pages(built).items():
        for link in Loads(page).links:
            target = unquote(link.split("#")[0].split("?")[0])
            if target and not re.match(r"[a-z]+:", target):
                assert (built / name).parent.joinpath(target).exists(), (name, link)


def test_a_notebook_keeps_words_of_pictures_and_folded_answers_but_no_notes(built):
    page = pages(built)["notebooks/week01_a.html"]
    assert 'A curve & "more"' in Loads(page).alts
    assert 'width="300"' in page
    assert FOLDED.replace("42", "43") in page  # the executed one, not the committed
    assert FOLDED not in page
    assert "In class" not in page
    # IPython's Code has LaTeX beside its HTML. The search would find the page by it.
    files = [file for file in built.rglob("*") if file.suffix in (".html", ".js")]
    assert not [file for file in files if "verbatimly" in file.read_text("utf-8")]


def test_formulas_are_mathml(built):
    page = pages(built)["notebooks/week01_a.html"]
    assert "<mfrac>" in page
    assert "<mtable" in page
    assert "\\frac" not in page
    assert not [src for src in Loads(page).loaded if "mathjax" in src.lower()]


def test_the_reference_has_arguments_and_drawings_and_no_values_of_this_machine(built):
    """A default such as os.environ stays a name: its value would publish the builder's secrets."""
    page = pages(built)["reference/small.html"]
    assert "Return twice x" in page
    assert re.search(r"Parameters.*any number", page, re.DOTALL)
    assert re.search(r"<pre>.*a  -&gt;  b", page, re.DOTALL)
    items = re.findall(r"<li><p>.*?</li>", page, re.DOTALL)
    words = [" ".join(re.sub(r"<[^>]+>", "", one).split()) for one in items]
    wanted = {"B: sequences", "T: tokens", "d: width", "outer: the rest"}
    assert wanted | {"inner: what it has inside, in a line that is longer"} <= set(words)
    assert re.search(r"environ.*=.*os\.environ", page)
    assert os.environ["PATH"] not in page


def test_the_index_of_the_reference_has_a_line_for_each_module(built):
    page = pages(built)["reference.html"]
    link = r'href="reference/small\.html#module-helpers\.small\.twice"'
    line = link + r".*?</a>: What the module is for\."
    assert re.search(line, page, re.DOTALL)


def test_a_notebook_has_buttons_and_the_forge_s_where_it_is_known(built):
    """Building asks no host: the links are made of the address."""
    page = pages(built)["notebooks/week01_a.html"]
    for label in ("download-notebook-button", "fullscreen-button"):
        assert page.count(f"btn-{label}") == 1
    nb = nbformat.read(built / "downloads" / "notebooks" / "week01_a.ipynb", as_version=4)
    assert [cell.outputs for cell in nb.cells if cell.cell_type == "code"] == [[], []]
    assert "In class" not in nbformat.writes(nb)
    for name in ("launch-buttons", "source-file-button"):
        assert f"btn-{name}" in page or f"dropdown-{name}" in page
    links = [link for link in Loads(page).links if "owner/course" in link]
    assert links == [
        "https://mybinder.org/v2/gh/owner/course/main?urlpath=lab/tree/notebooks/week01_a.ipynb",
        "https://colab.research.google.com/github/owner/course/blob/main/notebooks/week01_a.ipynb",
        "https://github.com/owner/course/blob/main/notebooks/week01_a.ipynb?plain=1",
        "https://github.com/owner/course/discussions",
    ]
    assert not [link for link in Loads(pages(built)["search.html"]).links if "ipynb" in link]


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@github.com:a/b.git", "https://github.com/a/b"),
        ("https://x:secret@gitlab.com/a/b/", "https://gitlab.com/a/b"),
        ("https://github.com.example.org/a/b", ""),
        ("/home/me/course.git", ""),
        ("", ""),
    ],
)
def test_the_forge_s_address_has_no_secret(site, monkeypatch, remote, address):
    monkeypatch.setenv("COURSE_REPOSITORY", remote)
    buttons = extension(site, "buttons")
    assert buttons.repository("/") == address
    assert bool(buttons.options("/")) == bool(address)


def test_what_a_page_loads_from_elsewhere_is_removed_and_its_links_stay(site, tmp_path):
    stay = '<a href="https://a.b/c">c</a><link rel="canonical" href="https://a.b/d">'
    stay += '<script src="_static/own.js"></script>'
    away = '<link rel="stylesheet" href="https://e.f/g.css"><script src="//h.i/j.js"></script>'
    (tmp_path / "page.html").write_text(stay + away)
    site.remove_foreign(tmp_path)
    assert (tmp_path / "page.html").read_text() == stay


def test_the_options_of_make_site(site, monkeypatch, capsys):
    monkeypatch.setattr(site, "build", lambda **options: options)
    site.main([])
    site.main(["build/executed", "--warnings"])
    plain, given = capsys.readouterr().out.splitlines()
    assert plain == str({"executed": None, "warnings": False})
    assert given == str({"executed": Path("build/executed"), "warnings": True})


def test_when_sphinx_fails_it_says_so(site, root, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "old.html").write_text("of the last time")
    monkeypatch.setattr(site.sys, "executable", "/bin/false")
    with pytest.raises(SystemExit, match="Sphinx has failed"):
        site.build(root, into=tmp_path)
    assert not (tmp_path / "site" / "old.html").exists()


def test_the_pages_before_sphinx(site, root, tmp_path):
    """What is linked, and no more; nothing of an earlier time."""
    more = tmp_path / "course"
    shutil.copytree(root, more)
    shutil.rmtree(more / "notebooks" / "guide")
    (more / "helpers" / "empty").mkdir()
    (more / "helpers" / "small" / "__main__.py").write_text("")
    (more / "helpers" / "small" / "__main__again.py").write_text("")
    (more / "figures" / "draw.py").write_text("")
    scripts = ["solutions/a_b.py", "solutions/c.csv", "solutions/not_linked.py", "outside.py"]
    for name in scripts:
        (more / "notebooks" / name).parent.mkdir(exist_ok=True)
        (more / "notebooks" / name).write_text(name)
    (more / "secret.txt").write_text("")
    links = "[a](solutions/a\\_b.py#L3) [c](solutions/c.csv) [x](solutions/gone.py) [y](#here)"
    links += " [z](../../secret.txt) [d](solutions) [w](https://a.b/outside.py)"
    project = more / "notebooks" / "project"
    notebook(project / "p.ipynb", new_markdown_cell("# P\n[out](../outside.py)"))
    notebook(more / "notebooks" / "week02_b.ipynb", new_markdown_cell(f"# 2\n\n{links}"))
    source = tmp_path / "source"
    (source / "notebooks").mkdir(parents=True)
    (source / "notebooks" / "old.md").write_text("")
    site.gather(more, more / "notebooks", source)
    found = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()}
    weeks = {"week01_a", "week02_b", "week03_c", "project/p"}
    assert found == {
        "index.md", "README.md", "cards/week01_a.png", "plan.md", "replays.md",
        "reference.md", "reference/small.md",
        "figures/drawing.png", "figures/table.md", *(f"notebooks/{week}.ipynb" for week in weeks),
        "notebooks/solutions/a_b.py", "notebooks/solutions/c.csv", "notebooks/outside.py",
    }  # fmt: skip
    front = (source / "index.md").read_text()
    assert front.endswith(
        "```{toctree}\n:hidden:\n:caption: Weeks\n\nWeek 2 · Second <notebooks/week02_b>\n"
        "Week 1 · First <notebooks/week01_a>\nnotebooks/project/p\nnotebooks/week03_c\n```\n\n"
        "```{toctree}\n:hidden:\n:caption: More\n\n"
        "Set up and use <README>\nplan\nreplays\nreference\n```\n\n"
    )
    assert (source / "README.md").read_text() == README
    index = (source / "reference.md").read_text()
    assert index.endswith("```{toctree}\n:hidden:\n\nreference/small\n```\n")
    modules = re.findall(
        r"^.. automodule:: (\S+)$", (source / "reference/small.md").read_text(), re.M
    )
    assert modules == ["helpers.small", "helpers.small.twice"]


def test_a_notebook_as_a_page(site, tmp_path):
    """A picture of which nothing is known is left to Sphinx."""
    about = {"image/png": {"height": 20, "width": 30}}
    cells = [
        new_markdown_cell("# A", metadata={"slideshow": {"slide_type": "slide"}, "tags": ["x"]}),
        shown("plot()", image_png=PNG),
        shown("plot()", image_png=PNG, text_plain="<Figure>", about=about),
    ]
    cells[1].metadata.jupyter = {"source_hidden": True}
    notebook(tmp_path / "a.ipynb", *cells)
    title, plain, known = json.loads(site.page(tmp_path / "a.ipynb"))["cells"]
    assert title["metadata"] == {"tags": ["x"]}
    assert plain["metadata"]["tags"] == ["hide-input"]
    assert "tags" not in known["metadata"]
    assert "".join(plain["outputs"][0]["data"]["image/png"]).strip() == PNG
    page = f'<img alt="" width="30" height="20" src="data:image/png;base64,{PNG}">'
    assert known["outputs"][0]["data"] == {"text/html": page}
    assert site.picture(["ab\n", "cd\n"], {"alt": "<"}) == (
        '<img alt="&lt;" src="data:image/png;base64,abcd">'
    )


def test_a_card_has_the_parts_of_its_week_and_the_first_open_picture(tmp_path):
    front = ci("front")
    table = "| 7 | Why? | [A](notebooks/a.ipynb) |\n| 8 | | [X](notebooks/x.ipynb) |\n"
    table += "| 7 | How? | [B](notebooks/b.ipynb) |\n"
    (week,) = front.weeks_of(table, {"a", "b"})
    notebook(tmp_path / "a.ipynb", new_markdown_cell("![gone](gone.png)"))
    notebook(tmp_path / "b.ipynb", shown("plot()", text_html=FOLDED), shown("2", image_png=PNG))
    (tmp_path / "cards").mkdir()
    card = front.card(week, {name: tmp_path / f"{name}.ipynb" for name in "ab"}, tmp_path)
    assert card == (
        "```{container} card-of-week\n![](cards/a.png)\n\n"
        "**[Week 7 · A](notebooks/a.ipynb)**\n\nWhy?\n\n- [B](notebooks/b.ipynb)\n```"
    )
    assert (tmp_path / "cards" / "a.png").read_bytes() == base64.b64decode(PNG)


def test_a_replay_by_hand(site):
    """Of 810 pixels, a box from 1 to 4 of 4 units has 607.5 and begins at 80 + 202.5."""
    box = {"row": 1, "start": 1, "end": 4, "label": "<7>", "kind": "backward"}
    about = {"unit": "s<", "busy": "work", "about": "A & 7.", "seconds": 9}
    run = {"title": "A & B", "rows": ["r&0", "r1"], "boxes": [box], **about}
    page = site.replay(run)
    assert page.startswith(
        '<div class="replay" data-left="80" data-scale="202.50000" data-end="4" data-unit="s&lt;" '
        'data-busy="work" data-seconds="9">'
        '\n<svg viewBox="0 0 900 104" role="img" aria-label="A &amp; B" '
    )
    assert '<text x="4" y="46">r&amp;0</text>' in page
    assert '<line x1="80" x2="890" y1="90" y2="90" ' in page
    assert (
        '<g data-start="1" data-end="4"><rect x="282.50" y="62" width="607.50" height="27" '
        'stroke="white" fill="#228833"/><text x="285.50" y="80" fill="white">&lt;7&gt;</text></g>'
    ) in page
    assert '<line class="now" x1="890" x2="890" y1="20" y2="96" ' in page
    assert '<p><span style="color:#228833">■</span> backward. A &amp; 7.</p></div>' in page


def test_replays_are_at_the_end_of_their_sections(site):
    """And all are on a page, in the order of the weeks."""
    runs = site.runs_of(site.SETTINGS / "replays")
    assert list(runs) == ["ring", "gpipe", "1f1b", "zb-h1", "zero-3", "serving"]
    for run in runs.values():
        path = ROOT / "notebooks" / f"{run['notebook']}.ipynb"
        cells = json.loads(site.page(path, runs=[run]))["cells"]
        (place,) = [k for k, cell in enumerate(cells) if 'class="replay"' in cell["source"]]
        assert "".join(cells[place + 1]["source"]).startswith(run["before"])
        assert run["title"] in cells[place]["source"]
    with pytest.raises(ValueError, match="not in list"):
        site.put([{"source": "# A"}], run)
    text = site.replays(runs, {"week05_pipeline_parallel"})
    assert len(re.findall("^## ", text, re.M)) == text.count('class="replay"') == 6
    assert text.count("(notebooks/week05_pipeline_parallel.ipynb)") == text.count("Taught in") == 3


def extension(site, name):
    spec = importlib.util.spec_from_file_location("m", site.SETTINGS / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_drawings_of_a_module_s_docstring_are_marked(site):
    process = extension(site, "docstrings").process
    given = ["T", "", "    a", "", "    b", "text", "    no drawing", "", "    c", "", "end"]
    lines = list(given)
    process(None, "function", "f", None, None, lines)
    assert lines == given
    process(None, "module", "m", None, None, lines)
    drawing = ["T", "", "::", "", "    a", "", "    b", "", "text", "    no drawing", ""]
    assert lines == [*drawing, "::", "", "    c", "", "end"]


def test_scripts_and_styles_of_other_hosts_are_left_out(site):
    own, away = SimpleNamespace(filename="_static/a.js"), SimpleNamespace(filename="//a.b/c.js")
    context = {"script_files": [own, away, "http://d.e/f.js"], "css_files": ["g.css", "https://h"]}
    extension(site, "offline").local_only(None, "page", "template", context, None)
    assert context == {"script_files": [own], "css_files": ["g.css"]}


def test_a_formula_that_the_converter_does_not_know_stays_readable(site):
    module = extension(site, "mathml")
    assert "<mi>x</mi>" in module.mathml("x", "inline")
    module.convert = lambda *_, **__: 1 / 0
    assert module.mathml("a < b", "inline") == "<code>a &lt; b</code>"


def test_the_replays_are_recorded_runs_of_the_schedules(site, built):
    """Each rank computes all of its schedule, in its order, one after another."""
    from helpers.plans import schedules

    orders = {
        "gpipe": schedules.gpipe(4, 8),
        "1f1b": schedules.one_f_one_b(4, 8),
        "zb-h1": schedules.zero_bubble_h1(4, 8),
    }
    kinds = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
    files = site.runs_of(site.SETTINGS / "replays")
    assert files.keys() == {*orders, "ring", "zero-3", "serving"}
    for name, run in files.items():
        for row in range(len(run["rows"])):
            boxes = [box for box in run["boxes"] if box["row"] == row]
            ran = [(box["kind"], box["label"]) for box in boxes]
            if name in orders:
                order = orders[name].orders[row]
                assert ran == [(kinds[one.kind], str(one.micro)) for one in order]
            for box, after in itertools.pairwise(boxes):
                assert box["start"] <= box["end"] <= after["start"] + 1e-3
            if (
                name == "ring"
            ):  # the sums of chunk r end at rank r, which passes on its result first
                assert [int(label) for _, label in ran] == [
                    *((row - 1 - step) % 4 for step in range(3)),
                    *((row - step) % 4 for step in range(3)),
                ]

    def at_once(run, *kinds):
        spans = [(b["start"], b["end"]) for b in run["boxes"] if b["kind"] in kinds]
        return max(sum(a <= start < b for a, b in spans) for start, _ in spans)

    assert at_once(files["serving"], "prefill", "decode") == 4
    assert at_once(files["zero-3"], "gather", "gathered") == 2  # one in use, one ahead
    gathers = [box["row"] for box in files["zero-3"]["boxes"] if box["kind"] == "gathered"]
    assert set(gathers) == set(range(len(files["zero-3"]["rows"])))
    page = pages(built)["replays.html"]
    assert page.count('class="replay"') == len(files)
    boxes = re.findall(r'<rect x="([\d.]+)".*?width="([\d.]+)"', page)
    ends = [float(x) + float(wide) for x, wide in boxes]
    lines = [float(x) for x in re.findall(r'class="now" x1="([\d.]+)"', page)]
    assert max(ends) == pytest.approx(max(lines), abs=0.02)  # the last box ends at the line of now
    assert page.count("data-start=") == sum(len(run["boxes"]) for run in files.values())


def test_the_planned_cases_are_those_of_the_planner():
    """If this fails after a change of the simulator or the planner: python .ci/site/plans.py"""
    plans = ci("site/plans")
    data = json.loads(plans.FILE.read_text("utf-8"))
    fronts = data.pop("fronts")
    assert data == json.loads(json.dumps(plans.choices()))
    assert fronts.keys() == {" ".join(map(str, case)) for case in plans.cases()}
    for case in (("8B", "A100", 8, 2**22), ("405B", "H100", 16_384, 2**22, 0.25)):
        assert plans.found(*case) == fronts[" ".join(map(str, case))]
    for front in fronts.values():
        for one, after in itertools.pairwise(front):
            assert one[7] > after[7]
            assert one[8] <= after[8]  # rounded
        assert all(sum(row[9]) == pytest.approx(1000, abs=4) for row in front)


def test_the_course_s_own_notebooks_can_be_gathered(site, tmp_path):
    source = site.gather(ROOT, ROOT / "notebooks", tmp_path / "source")
    text = (source / "index.md").read_text("utf-8")
    weeks = re.findall(r"^(?:Week|Project).* <notebooks/(week\S+|project/\S+)>$", text, re.M)
    assert weeks[0] == "week01_ranks_and_collectives"
    assert len({week[:6] for week in weeks}) == len(weeks)  # one for each week; its parts are below
    cards = re.findall(r"\]\(notebooks/(week\w+)\.ipynb\)", text)[1:]  # the first path leads to one
    assert cards == sorted(cards)
    assert set(cards) == {p.stem for p in (ROOT / "notebooks").glob("week*.ipynb")}
    assert len(list((source / "cards").glob("week*.png"))) > 12
    last = json.loads((source / "notebooks" / "week06_zero.ipynb").read_text("utf-8"))["cells"][-1]
    assert last["source"] == "```{toctree}\n:hidden:\n\nZeRO: stage 3 <week06b_zero_3>\n```"
    guide = {p.stem for p in (ROOT / "notebooks" / "guide").glob("[!w]*.md")}
    assert guide == set(re.findall(r"^notebooks/guide/(\S+)$", text, re.M))
    assert (source / "notebooks" / "guide" / "week01.md").exists()
