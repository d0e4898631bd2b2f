"""Write START.ipynb into a student's folder: the notebooks in order, what is solved, what is next.

    start.py folder     does nothing if `make student` has not made the folder

`make student` and `make lab` write the page anew, unless the student has changed its text.
"""

import hashlib
import json
import os
import re
import sys
from pathlib import Path

import nbformat
from course import find
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from student import HANDED, write

ROOT = Path(__file__).resolve().parent.parent
NAME = "START.ipynb"
SOLVED = ".progress.json"  # of helpers.check.solved
KEY = "written"  # in the page's metadata: the digest of the text that this file has written
STUB = re.compile(r"^def (\w+)", re.M)
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
HOW = (
    "Open a notebook and run its cells in order, with `Shift+Enter`. Before each experiment you "
    "write down a number. The exercises come last: the cell below each checks your function."
)
NOW = "`make lab` writes this page anew. The next cell shows what you have solved by now."
END = "You have reached the end. The exercises marked · are left, and the project."


def page(root: Path, folder: Path) -> nbformat.NotebookNode:
    """Return the page, for a folder with this student's progress."""
    solved = solved_in(folder)
    rows, following, been = [], END, False
    for path in reversed(find(root)):
        name = path.relative_to(root / "notebooks").as_posix()
        title, question, minutes, exercises = about(path)
        title = f"[{title}]({name})"
        left = [name for name in exercises if name not in solved]
        marked = " ".join(f"{'·' if name in left else '✓'}&nbsp;`{name}`" for name in exercises)
        rows.append(f"| {title}<br>{question} | {minutes} | {marked} |")
        if left and not been:
            following = f"**Next: {title}**: {minutes} minutes, and exercises ({len(left)} left)."
        been = been or len(left) < len(exercises)  # what comes after the last solved exercise
    table = ["| notebook | minutes | exercises |", "|:--|--:|:--|", *reversed(rows)]
    texts = ["# Training at Scale: start here", following, HOW, links(root, folder)]
    cells = [new_markdown_cell("\n\n".join(texts)), new_markdown_cell("\n".join(table))]
    cells += [new_markdown_cell(NOW)]
    cells += [new_code_cell("from helpers import check\n\ncheck.progress()")]
    for number, cell in enumerate(cells):
        cell.id = f"start-{number}"  # the same bytes each time
    nb = new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nb.metadata[KEY] = digest(nb)
    return nb


def about(path: Path) -> tuple[str, str, str, list[str]]:
    """Return a notebook's title, question, minutes of its main path, and exercises."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    opening = sources[0] if cells else ""

    def first(pattern: str) -> str:
        found = re.search(pattern, opening, re.M)
        return found[1] if found else ""

    stubs = [
        STUB.search(source)
        for cell, source in zip(cells, sources, strict=True)
        if "exercise" in cell["metadata"].get("tags", ())
    ]
    title = first(r"\A# (.+)") or path.stem
    exercises = [stub[1] for stub in stubs if stub]
    return title, first(r"^\*\*(.+)\*\*$"), first(r"About (\d+) minutes"), exercises


def links(root: Path, folder: Path) -> str:
    """Return links to what lies outside the folder, if it is there."""
    places = {
        "what the course is": "README.md",
        "each error message, its cause and its remedy": "notebooks/guide/faults.md",
        "one source to read for each concept": "notebooks/guide/reading.md",
        "the course as a site": "build/site/index.html",
    }
    here = [
        f"[{words}]({Path(os.path.relpath(root / place, folder)).as_posix()})"
        for words, place in places.items()
        if (root / place).exists()
    ]
    return f"Beside the notebooks: {', '.join(here)}." if here else ""


def solved_in(folder: Path) -> dict:
    try:
        found = json.loads((folder / SOLVED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def digest(nb: nbformat.NotebookNode) -> str:
    text = json.dumps([cell.source for cell in nb.cells])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_the_student_s(mine: Path) -> bool:
    """Whether the student has changed the page's text; outputs do not count."""
    if not os.path.lexists(mine):
        return False
    try:
        there = nbformat.read(mine, as_version=4)
    except (OSError, ValueError):
        return True
    return there.metadata.get(KEY) != digest(there)


def main(folder: Path, root: Path = ROOT):
    if not (folder / HANDED).is_file() or is_the_student_s(folder / NAME):
        return
    try:
        write(folder / NAME, (nbformat.writes(page(root, folder)) + "\n").encode())
    except (OSError, ValueError) as error:  # a damaged notebook; JupyterLab opens all the same
        print(f"{folder / NAME} is not up to date: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
