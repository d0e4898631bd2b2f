"""Grade a folder of submitted notebooks, and write a table.

    make grade SUBMISSIONS=folder
    python -m helpers.check.grading.grade folder [--to grades.csv] [--trust]

Every notebook below the folder is graded: folder/name/week04_….ipynb, or folder/name.ipynb. An
exercise is expected if the course's notebook of that name has it, and graded wherever it is found.
Every exercise gets a sandbox of its own. Without bubblewrap there is none: --trust then runs the
submitted code as you, with your files and your network.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import helpers.check as check
from helpers.check import elsewhere
from helpers.check.grading import stand_in
from helpers.check.grading.definitions import NotANotebook, code_of, defined, definitions
from helpers.check.grading.sandbox import COURSE, Limits, Sandbox, bubblewrap

# MPI's ranks are started by mpiexec, which has no sandbox here; and the project is a whole script.
NOT_GRADED = {"train_by_mpi": "starts MPI's ranks: run the check by hand"}
NO_SANDBOX = (
    "There is no sandbox on this machine: bubblewrap (bwrap) is missing, or the system forbids it. "
    "Install it (apt install bubblewrap), or grade submissions that you trust with --trust: their "
    "code then runs as you."
)


@dataclass(frozen=True, kw_only=True)
class Grade:
    """A row of the table.

    Attributes:
        submission: the notebook, below the folder.
        exercise: the name of the function.
        passed: "yes", "no", or "not graded".
        finding: the first thing that is wrong, in one line.
    """

    submission: str
    exercise: str
    passed: str
    finding: str = ""


def exercises(notebooks: Path = COURSE / "notebooks") -> dict[str, list[str]]:
    """Return the exercises of each of the course's notebooks, by the notebook's name."""
    found = {}
    for path in sorted(notebooks.glob("week*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        stubs = ["".join(c["source"]) for c in cells if "exercise" in c["metadata"].get("tags", ())]
        found[path.stem] = [name for stub in stubs for name in sorted(defined([stub]))]
    return found


def grade_all(folder: Path, trusted: bool = False, limits: Limits | None = None) -> Iterator[Grade]:
    """Grade every notebook below the folder, and yield the rows as they come."""
    known = exercises()
    for path in sorted(folder.rglob("*.ipynb")):
        if ".ipynb_checkpoints" not in path.parts:
            yield from grade_notebook(path, str(path.relative_to(folder)), known, trusted, limits)


def grade_notebook(path, submission, known, trusted, limits) -> Iterator[Grade]:
    every = {name for names in known.values() for name in names}
    expected = [n for stem, names in known.items() if stem in path.stem for n in names]
    try:
        cells = code_of(path)
    except (NotANotebook, OSError) as error:
        for name in expected or ["?"]:
            yield Grade(submission=submission, exercise=name, passed="no", finding=str(error))
        return
    there, sources = defined(cells) & every, definitions(cells)
    for name in [*expected, *sorted(there - set(expected))]:
        row = {"submission": submission, "exercise": name}
        if name in NOT_GRADED:
            yield Grade(**row, passed="not graded", finding=NOT_GRADED[name])
        elif name not in there:
            yield Grade(**row, passed="no", finding="the notebook does not define it")
        else:
            yield Grade(**row, **verdict(name, sources, trusted, limits))


def verdict(name: str, sources: list[str], trusted: bool, limits: Limits | None) -> dict[str, str]:
    """Run the course's check of the function in a fresh sandbox."""
    with Sandbox(limits, trusted) as sandbox:
        try:
            with elsewhere.at(stand_in.Shut(sandbox, name, sources)):
                found = getattr(check, name)(stand_in.StandIn(name))
        except Exception as error:  # a result of a shape that the check does not expect
            finding = f"the check could not use the result: {type(error).__name__}: {error}"
            return {"passed": "no", "finding": one_line(finding)}
    if found:
        return {"passed": "yes"}
    return {"passed": "no", "finding": one_line(found.finding or found.status)}


def one_line(text: str, most: int = 300) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if text[:1] in "=+-@":  # a spreadsheet would take it for a formula
        text = f"'{text}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="make grade", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="the submissions")
    parser.add_argument("--to", type=Path, help="the table; by default grades.csv in the folder")
    parser.add_argument("--trust", action="store_true", help="run without a sandbox, as you")
    options = parser.parse_args(argv)
    if not options.folder.is_dir():
        sys.exit(f"there is no folder {options.folder}: make grade SUBMISSIONS=folder")
    if bubblewrap() is None and not options.trust:
        sys.exit(NO_SANDBOX)
    table = options.to or options.folder / "grades.csv"
    count = right = 0
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Grade)])
        writer.writeheader()
        for row in grade_all(options.folder, options.trust):
            writer.writerow(asdict(row))
            file.flush()
            count, right = count + 1, right + (row.passed == "yes")
            print(f"{row.submission}  {row.exercise}: {row.passed}  {row.finding}".rstrip())
    print(f"{right} of {count} passed: {table}")


if __name__ == "__main__":
    main()
