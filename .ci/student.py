"""Make a folder for a student's own work, or bring it up to date.

    student.py [folder]      by default work/, which git ignores

The folder gets the notebooks without outputs and without the speaker's notes, and the scripts and
solutions that they link. A file that is there already stays as it is, unless nobody has changed it.
If the course has changed such a notebook since, its new version is written beside it:
week01_….new.ipynb.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
HANDED = ".handed.json"  # {file: [digest of the course's version, digest of what was written]}
KINDS = {".ipynb", ".py", ".yaml", ".json", ".png", ".csv"}


def offer(root: Path, folder: Path) -> list[str]:
    """Write what is new, and return a line about each file that needs the student's attention."""
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / HANDED
    handed = json.loads(record.read_text("utf-8")) if record.exists() else {}
    lines, new = [], 0
    for source in course_files(root):
        name = source.relative_to(root / "notebooks").as_posix()
        content = without_outputs(source)
        mine, known = folder / name, handed.get(name, [None, None])
        if not mine.exists():
            place, new = mine, new + 1
        elif known[0] == digest(content):
            continue
        elif digest(mine.read_bytes()) == known[1]:  # nobody has changed it
            place = mine
            lines.append(f"{name} is the course's new version: you had not changed it")
        else:
            place = free_name(mine)
            lines.append(f"{name} is yours, and stays; the course's new version is {place.name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        written = digest(content) if place == mine else known[1]
        handed[name] = [digest(content), written]
        # at once: after an interrupt, no file counts as changed that was only written here
        record.write_text(json.dumps(handed, indent=1, sort_keys=True), "utf-8")
    if new:
        lines.insert(0, f"new files: {new}")
    return lines


def course_files(root: Path) -> list[Path]:
    """Return what a student needs of notebooks/, in order."""
    files = (path for path in (root / "notebooks").rglob("*") if path.suffix in KINDS)
    return sorted(
        path
        for path in files
        if path.is_file() and not {".ipynb_checkpoints", "__pycache__"} & set(path.parts)
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


def is_note(cell: dict) -> bool:
    """Whether a cell is for the speaker alone."""
    return cell["metadata"].get("slideshow", {}).get("slide_type") == "notes"


def free_name(path: Path) -> Path:
    """Return path.new.suffix, or path.new-2.suffix, …: the first that does not exist."""
    number, stem = 1, path.with_suffix("")
    while True:
        place = Path(f"{stem}.new{f'-{number}' if number > 1 else ''}{path.suffix}")
        if not place.exists():
            return place
        number += 1


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main(argv=None, root=ROOT):
    parser = argparse.ArgumentParser(
        prog="make student", description=__doc__.split("\n")[0], allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=root / "work")
    folder = parser.parse_args(argv).folder
    if folder.resolve() == (root / "notebooks").resolve():
        sys.exit("notebooks/ is the course's own folder; name another, or none for work/")
    for line in offer(root, folder):
        print(line)
    print(f"Your notebooks are in {folder.name}/. To open them: make lab AT={folder.name}")


if __name__ == "__main__":
    main()
