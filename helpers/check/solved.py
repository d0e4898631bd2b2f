"""Which exercises are solved: remembered in the student's work folder, drawn by week."""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.check.verdict import Verdict
from helpers.plots.page import Markup, table

MARK = ".handed.json"  # a folder with this file is a student's; `make student` makes it
FILE = ".progress.json"  # {exercise: the day on which it was first solved}
GREEN, GREY = "#009e73", "#999999"

_solved: dict[str, str] = {}  # in this kernel


@dataclass(frozen=True)
class Progress:
    """The exercises of each week, and the day on which each was first solved. It draws itself.

    Attributes:
        weeks: {"week 1": names of its exercises}, in order.
        solved: {exercise: day}, days as 2026-01-31.
    """

    weeks: Mapping[str, Sequence[str]]
    solved: Mapping[str, str]

    @classmethod
    def so_far(cls, weeks: Mapping[str, Sequence[str]]) -> "Progress":
        """Return what is solved, in this kernel and in earlier ones of the same work folder."""
        folder = work_folder()
        return cls(weeks, {**_solved, **(read(folder / FILE) if folder else {})})

    def count(self, names: Sequence[str]) -> str:
        return f"{sum(name in self.solved for name in names)} of {len(names)}"

    def __repr__(self):
        lines = []
        for week, names in self.weeks.items():
            marks = [f"{'✓' if name in self.solved else '·'} {name}" for name in names]
            lines.append(f"{week}: {self.count(names)}   {'   '.join(marks)}")
        return "\n".join(lines)

    def _repr_html_(self):
        rows = [
            (week, self.count(names), Markup(" ".join(map(self.box, names))))
            for week, names in self.weeks.items()
        ]
        return table(rows, head=("week", "solved", "exercises"), align=("left", "right", "left"))

    def box(self, name: str) -> str:
        day = self.solved.get(name)
        colour, title = (GREEN, f"solved on {day}") if day else (GREY, "not solved yet")
        filled = f"background:{colour};color:white" if day else f"color:{colour}"
        style = f"border:1px solid {colour};border-radius:.3em;padding:0 .4em;{filled}"
        return f"<span title='{title}' style='{style};white-space:nowrap'>{name}</span>"


def note(exercise: str, verdict: Verdict):
    """Remember a solved exercise, in the work folder if the kernel runs in one."""
    if not verdict or exercise in _solved:
        return
    day = datetime.date.today().isoformat()
    _solved[exercise] = day
    folder = work_folder()
    if folder is None:
        return
    solved = read(folder / FILE)
    if exercise in solved:
        return
    solved[exercise] = day
    new = folder / f"{FILE}.{os.getpid()}"
    try:
        new.write_text(json.dumps(solved, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(new, folder / FILE)
    except OSError:  # a full disk, or a folder of somebody else: the kernel still remembers
        new.unlink(missing_ok=True)


def work_folder() -> Path | None:
    """Return the student's folder around this kernel's own, or None."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / MARK).is_file()), None)


def read(file: Path) -> dict[str, str]:
    """Return {exercise: day}; {} if the file is not there or is damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {str(name): str(day) for name, day in content.items()}
