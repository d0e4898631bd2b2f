"""Make a folder for a student's own work, or bring it up to date.

    student.py [folder] [--solutions]      by default work/, which git ignores

The folder gets the notebooks without outputs and without the speaker's notes, and the scripts that
they link. A file that is there already stays as it is, unless nobody has changed it.
If the course has changed such a notebook since, its new version is written beside it:
week01_….new.ipynb.
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

import nbformat
from course import is_note

ROOT = Path(__file__).resolve().parent.parent
HANDED = ".handed.json"  # {file: [digest of the course's version, digest of what was written]}
KINDS = {".ipynb", ".py", ".yaml", ".sbatch", ".json", ".png", ".csv"}


def offer(root: Path, folder: Path, solutions: bool = False) -> list[str]:
    """Write what is new, and return a line about each file that needs the student's attention."""
    folder.mkdir(parents=True, exist_ok=True)
    handed = record_of(folder)
    lines, new = [], 0
    for source in course_files(root, solutions):
        name = source.relative_to(root / "notebooks").as_posix()
        seen, written = handed.get(name, (None, None))
        try:
            content = without_outputs(source)
            course = digest(content)
            if seen == course and os.path.lexists(folder / name):
                continue
            place = place_for(folder / name, course, written)
            if place:
                line = news(name, place, folder / name)
                place.parent.mkdir(parents=True, exist_ok=True)
                write(place, content)
                new += not line
                lines += [line] * bool(line)
        except (OSError, ValueError) as error:  # a damaged notebook is a ValueError
            lines.append(f"{name} is left out: {str(error).splitlines()[0]}")
            continue
        handed[name] = [course, course if place in (None, folder / name) else written]
        # at once: after an interrupt, no file counts as changed that was only written here
        write(folder / HANDED, json.dumps(handed, indent=1, sort_keys=True).encode())
    if new:
        lines.insert(0, f"new files: {new}")
    return lines


def place_for(mine: Path, course: str, written: str | None) -> Path | None:
    """Return where the course's version goes; None if it is there already.

    Args:
        mine: the student's file.
        course: digest of the course's version.
        written: digest of what was written to `mine`, if that is known.
    """
    if not os.path.lexists(mine):  # a link that leads nowhere is the student's, too
        return mine
    own = digest(mine.read_bytes()) if mine.is_file() else ""
    if own == course:
        return None
    return mine if own == written else free_name(mine)


def news(name: str, place: Path, mine: Path) -> str:
    """Return what the student should read; nothing about a new file."""
    if not os.path.lexists(mine):
        return ""
    if place == mine:
        return f"{name} is the course's new version: you had not changed it"
    return f"{name} is yours, and stays; the course's new version is {place.name}"


def record_of(folder: Path) -> dict[str, list]:
    """Return what was handed out; nothing, if the record is damaged."""
    try:
        found = json.loads((folder / HANDED).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    found = found if isinstance(found, dict) else {}
    return {name: row for name, row in found.items() if isinstance(row, list) and len(row) == 2}


def write(place: Path, content: bytes):
    """Write all of it or nothing: half a notebook would count as the student's work."""
    part = place.with_name(f".{place.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)


def course_files(root: Path, solutions: bool = False) -> list[Path]:
    """Return what a student needs of notebooks/, in order."""
    files = (path for path in (root / "notebooks").rglob("*") if path.suffix in KINDS)
    left_out = {".ipynb_checkpoints", "__pycache__", *(() if solutions else ("solutions",))}
    return sorted(
        path
        for path in files
        if path.is_file() and not left_out & set(path.relative_to(root).parts)
    )


def without_outputs(path: Path) -> bytes:
    """Return the file's bytes; a notebook's without outputs and without the speaker's notes."""
    if path.suffix != ".ipynb":
        return path.read_bytes()
    nb = nbformat.read(path, as_version=4)
    nb.metadata.pop("executed", None)
    nb.cells = [cell for cell in nb.cells if not is_note(cell)]
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return (nbformat.writes(nb) + "\n").encode()


def free_name(path: Path) -> Path:
    """Return path.new.suffix, or path.new-2.suffix, …: the first that does not exist."""
    number, stem = 1, path.with_suffix("")
    while True:
        place = Path(f"{stem}.new{f'-{number}' if number > 1 else ''}{path.suffix}")
        if not os.path.lexists(place):
            return place
        number += 1


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main(argv=None, root=ROOT):
    parser = argparse.ArgumentParser(
        prog="make student", description=__doc__.split("\n")[0], allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=root / "work")
    parser.add_argument("--solutions", action="store_true", help="of the exercises, too")
    options = parser.parse_args(argv)
    folder = options.folder
    if folder.resolve() == (root / "notebooks").resolve():
        sys.exit("notebooks/ is the course's own folder; name another, or none for work/")
    try:
        lines = offer(root, folder, options.solutions)
    except OSError as error:
        sys.exit(f"cannot write to {folder}: {error.strerror}")
    for line in lines:
        print(line)
    print(f"Your notebooks are in {folder.name}/. To open them: make lab AT={folder.name}")


if __name__ == "__main__":
    main()
