"""Write what an instructor hands out to build/handout/: no outputs, no solutions, no notes.

The folder is a copy of the course, without git, tests, the solutions of exercises, the instructor's
guide and the speaker's notes. The README there has no sections for instructors and developers.
Students unpack the folder and run `make student`, as everybody does.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from student import without_outputs

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = (
    "notebooks/solutions/",
    "notebooks/guide/README.md",
    "notebooks/guide/class.md",
    "notebooks/guide/developing.md",
    "notebooks/guide/week",
    "tests/",
    "helpers/check/grading/",
)
NOT_STUDENTS = re.compile(r"^### (?:Instructors|Developers)\n.*?(?=^#)", re.M | re.S)


def hand_out(root: Path, folder: Path) -> list[Path]:
    """Fill the folder, and return its files. What was in it is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    written = []
    for name in tracked(root):
        if name.startswith(LEFT_OUT) or not (root / name).is_file():
            continue
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("notebooks/"):
            try:
                place.write_bytes(without_outputs(root / name))
            except ValueError as error:
                raise ValueError(f"{name}: {str(error).splitlines()[0]}") from None
        else:
            shutil.copy2(root / name, place)
        if name == "README.md":
            place.write_text(NOT_STUDENTS.sub("", place.read_text("utf-8")), encoding="utf-8")
        written.append(place)
    return written


def tracked(root: Path) -> list[str]:
    """Return the names of the files that git knows: nothing of the instructor's own."""
    return git(root, "ls-files", "-z")


def git(root: Path, *order: str) -> list[str]:
    """Return the names that git writes."""
    found = subprocess.run(
        ["git", *order], cwd=root, capture_output=True, encoding="utf-8", check=True
    )
    return [name for name in found.stdout.split("\0") if name]


def changed(root: Path) -> list[str]:
    """Return the notebooks that differ from the last commit: they may hold your own answers."""
    found = git(root, "diff", "--relative", "--name-only", "-z", "HEAD", "--", "notebooks")
    return [name for name in found if not name.startswith(LEFT_OUT)]


def main(root=ROOT):
    folder = root / "build" / "handout"
    try:
        if not tracked(root):
            sys.exit("git knows no file here: run this in a clone")
        written, own = hand_out(root, folder), changed(root)
    except ValueError as error:
        sys.exit(f"nothing was handed out: {error}")
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"git does not list the course's files ({error}): run this in a clone")
    for name in own:
        print(f"{name} is not as it was committed: does it hold answers?")
    archive = shutil.make_archive(str(folder), "zip", folder)
    print(f"{len(written)} files in {folder.relative_to(root)}/ and {Path(archive).name}")


if __name__ == "__main__":
    main()
