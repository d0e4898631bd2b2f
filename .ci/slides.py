"""Write a deck of slides for each notebook: build/slides/index.html lists them.

    slides.py [--from FOLDER] [words]   by default the committed notebooks; only those whose names
                                        contain one of the words

A deck is a page for reveal.js. It loads nothing from another host. What goes deeper than the hour
has no slides. The cells' slide types give the slides; a script in the page then moves what does not
fit to a following slide (slides/fit.js).
"""

import argparse
import ast
import html
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

from course import find, is_deeper, is_folded, slide_type
from loading import load

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = Path(__file__).with_name("slides")

REVEAL = ("dist/reset.css", "dist/reveal.css", "dist/reveal.js", "plugin/notes/notes.js")
OWN = ("deck.css", "fit.js", "pages.js", "start.js")
BUILDS = re.compile(r"^ *(?:def|class) ", re.M)
QUESTION = re.compile(r"^\*\*(.+?)\*\*$", re.M)

FROM_PLOTS = re.compile(r"^from helpers\.plots\S* import (\([^)]*\)|.*)", re.M)
RUNS = re.compile(r"\b(?:launch|run|show|compare|side_by_side|assert|def|class|measure\w*)\b")

cells_of = load(SETTINGS / "cells.py")


def only_imports(cell: dict, source: str) -> bool:
    """Whether a cell does little but import: the room does not need to see it."""
    begins = source.startswith(("import ", "from "))
    return begins and not cell["outputs"] and not BUILDS.search(source)


def only_asked(cell: dict, source: str) -> bool:
    """Whether a cell checks an exercise that nobody has written yet."""
    return source.startswith("check.") and "not written yet" in json.dumps(cell["outputs"])


def only_draws(source: str, names: set[str]) -> bool:
    """Whether a cell draws what other cells computed: the room needs to see its picture alone.

    Args:
        names: of the notebook's functions that draw.
    """
    if RUNS.search(source):
        return False
    try:
        last = ast.parse(source).body[-1]
    except (SyntaxError, IndexError):  # a line for the shell, or only comments
        return False
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        return False
    called = ast.unparse(last.value.func)
    return called.startswith("plots.") or called.endswith(".plot") or called in names


def drawing(cells: list[dict]) -> set[str]:
    """Return the names that a notebook imports from `helpers.plots`."""
    sources = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return {name for names in FROM_PLOTS.findall(sources) for name in re.findall(r"\w+", names)}


def stacks(cells: list[dict]) -> list[list[list[dict]]]:
    """Return sections of slides of cells: a `slide` starts a section, a `subslide` a slide."""
    found: list[list[list[dict]]] = []
    names = drawing(cells)
    for cell in cells:
        kind = slide_type(cell)
        source = "".join(cell["source"])
        if kind == "skip" or is_deeper(cell) or not source.strip():
            continue
        if cell["cell_type"] == "code":
            silent = is_folded(cell) and not cell["outputs"]
            if silent or only_imports(cell, source) or only_asked(cell, source):
                continue
            if is_folded(cell) or (cell["outputs"] and only_draws(source, names)):
                cell = cell | {"source": ""}
        if kind == "slide" or not found:
            found.append([[]])
        elif kind == "subslide":
            found[-1].append([])
        found[-1][-1].append(cell)
    return [[slide for slide in stack if slide] for stack in found]


def deck(path: Path) -> str:
    """Return the page of a notebook's slides."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    body = "\n".join(
        "<section>\n" + "\n".join(slide(cells, path.parent) for cells in stack) + "\n</section>"
        for stack in stacks(cells)
    )
    template = (SETTINGS / "deck.html").read_text(encoding="utf-8")
    return template.replace("{title}", html.escape(title(cells))).replace("{slides}", body)


def slide(cells: list[dict], folder: Path) -> str:
    """Return one slide as the notebook has it: a part for each cell, and the speaker's notes."""
    parts = "\n".join(cells_of.unit(cell, folder) for cell in cells)
    return f"<section>\n{parts}\n</section>"


def title(cells: list[dict]) -> str:
    first = "".join(cells[0]["source"]).split("\n")[0]
    return first.lstrip("# ")


def question(cells: list[dict]) -> str:
    """Return the notebook's question: the first bold line of its first cell."""
    found = QUESTION.search("".join(cells[0]["source"]))
    return found[1] if found else ""


def listing(paths: list[Path]) -> str:
    """Return the page that lists the decks."""
    rows = []
    for path in paths:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        rows.append(
            f'<li><a href="{path.stem}.html">{html.escape(title(cells))}</a>'
            f"<p>{html.escape(question(cells))}</p></li>"
        )
    template = (SETTINGS / "index.html").read_text(encoding="utf-8")
    return template.replace("{decks}", "\n".join(rows))


def reveal() -> Path:
    """Return the folder of reveal.js, which the library sphinx-revealjs brings along."""
    found = importlib.util.find_spec("sphinx_revealjs")
    if found is None:
        sys.exit("sphinx-revealjs brings reveal.js, and is not installed: run `make setup`")
    return Path(found.origin).with_name("_static") / "revealjs"


def build(root: Path = ROOT, words=(), executed: Path | None = None, into=None) -> Path:
    """Write the decks into the folder `into`, by default build/slides, and return their list."""
    out = into or root / "build" / "slides"
    shutil.rmtree(out, ignore_errors=True)
    (out / "deck").mkdir(parents=True)
    for name in REVEAL:
        shutil.copy2(reveal() / name, out / "deck")
    for name in OWN:
        shutil.copy2(SETTINGS / name, out / "deck")
    (out / "deck" / "code.css").write_text(cells_of.colours(".page pre"), encoding="utf-8")
    paths = find(root, words)
    for path in paths:
        newer = executed / path.name if executed else path
        page = deck(newer if newer.exists() else path)
        (out / f"{path.stem}.html").write_text(page, encoding="utf-8")
    index = out / "index.html"
    index.write_text(listing(paths), encoding="utf-8")
    return index


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="only notebooks whose name contains one of these")
    parser.add_argument("--from", dest="executed", type=Path, help="a folder of executed notebooks")
    options = parser.parse_args(argv)
    print(build(words=options.words, executed=options.executed))


if __name__ == "__main__":
    main()
