"""What is to be graded in a folder of submissions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.check.grading.definitions import COURSE, NotANotebook, code_of, definitions, read
from helpers.check.grading.table import Grade, clean, one_line

# MPI's ranks are started by mpiexec, which has no sandbox here; and the project is a whole script.
NOT_GRADED = {"train_by_mpi": "starts MPI's ranks: run the check by hand"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """An exercise of a submission: what to run, or the row of the table, if nothing is to run."""

    submission: str
    exercise: str
    sources: Sequence[str] = ()
    row: Grade | None = None


def exercises(notebooks: Path = COURSE / "notebooks") -> dict[str, list[str]]:
    """Return the exercises of each of the course's notebooks, by the notebook's name."""
    found = {}
    for path in sorted(notebooks.glob("week*.ipynb")):
        content = path.read_text(encoding="utf-8")
        tags = [cell["metadata"].get("tags", ()) for cell in json.loads(content)["cells"]
                if cell["cell_type"] == "code"]  # fmt: skip
        stubs = [c for c, tag in zip(code_of(content), tags, strict=True) if "exercise" in tag]
        found[path.stem] = [name for stub in stubs for name in definitions([stub]).functions]
    return found


def notebooks(folder: Path) -> list[Path]:
    """Return the notebooks below the folder, and what is named as one."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() == ".ipynb"
        and path.name != "START.ipynb"  # of `make student`: it has no exercise
        and ".ipynb_checkpoints" not in path.parts
    )


def ignored(folder: Path, table: Path) -> list[str]:
    """Return the names of files below the folder that are no notebooks, and so are not graded."""
    return sorted(
        clean(path.relative_to(folder).as_posix())
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix.lower() != ".ipynb"
        and path.resolve() not in (table.resolve(), (table.parent / "scores.csv").resolve())
        and path.parent.resolve() != (table.parent / "feedback").resolve()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def found_in(folder: Path, known: Mapping[str, Sequence[str]]) -> Iterator[Task]:
    """Find what each notebook below the folder has to grade."""
    for path in notebooks(folder):
        yield from tasks_of(path, clean(path.relative_to(folder).as_posix()), known)


def tasks_of(path: Path, submission: str, known: Mapping[str, Sequence[str]]) -> Iterator[Task]:
    """Find what one notebook has to grade: an exercise of its week, or any that it defines."""

    def row(exercise, passed, finding):
        grade = Grade(
            submission=submission, exercise=exercise, passed=passed, finding=one_line(finding)
        )
        return Task(submission=submission, exercise=exercise, row=grade)

    every = {name for names in known.values() for name in names}
    expected = [name for stem, names in known.items() if stem in path.stem for name in names]
    try:
        notebook = read(path)
    except NotANotebook as error:
        for name in expected or ["?"]:
            yield row(name, "no", str(error))
        return
    there = set(notebook.functions) & every
    for name in [*expected, *sorted((there | set(notebook.broken) & every) - set(expected))]:
        if name in NOT_GRADED:
            yield row(name, "not graded", NOT_GRADED[name])
        elif name in there:
            sources = notebook.needed_by(name)
            yield Task(submission=submission, exercise=name, sources=sources)
        else:
            yield row(name, "no", notebook.broken.get(name, "the notebook does not define it"))
    if not (expected or there or set(notebook.broken) & every):
        yield row("?", "no", "the notebook defines no exercise of the course")
