"""The result of an exercise's check: the first mistake in one line, and a hint."""

import html
import re
import traceback
from dataclasses import dataclass

from helpers.runtime.stacks import with_cell_names

MARKS = {"passed": ("✓", "#009e73"), "wrong": ("✗", "#d55e00"), "not written yet": ("…", "#666666")}
FRAME = re.compile(r'^  (?:File "([^"]+)"|(Cell In\[\d+\])), line (\d+), in (.+)$')
NOT_THEIRS = ("site-packages", "helpers/check/", "/torch/")
MOST_FRAMES = 8  # an endless recursion has thousands


@dataclass(frozen=True)
class Verdict:
    """The result of one check. It draws itself in a notebook, and is true only when passed.

    Attributes:
        exercise: the name of the exercise.
        status: "passed", "wrong" or "not written yet".
        finding: what the check ran, and what the function returned or raised.
        hint: where to look for the mistake; never the answer.
    """

    exercise: str
    status: str
    finding: str = ""
    hint: str = ""

    def __bool__(self):
        return self.status == "passed"

    def __repr__(self):
        lines = [f"{MARKS[self.status][0]} {self.exercise}: {self.status}"]
        lines += [line for line in (self.finding, self.hint and f"Hint: {self.hint}") if line]
        return "\n".join(lines)

    def _repr_html_(self):
        mark, color = MARKS[self.status]
        finding = f"<pre style='margin:.3em 0'>{html.escape(self.finding)}</pre>"
        hint = f"<div><b>Hint</b>: {html.escape(self.hint)}</div>"
        return (
            f"<div style='border-left:4px solid {color};padding:.3em .8em'>"
            f"<b style='color:{color}'>{mark} {html.escape(self.exercise)}: {self.status}</b>"
            f"{finding if self.finding else ''}{hint if self.hint else ''}</div>"
        )


class NotRight(Exception):
    """A wrong result: the finding (what the function returned) and a hint."""

    def __init__(self, finding: str, hint: str = ""):
        super().__init__(finding)
        self.finding, self.hint = finding, hint


def what_was_raised(error: BaseException) -> str:
    """Describe the error, with the student's lines that led to it."""
    raised = "".join(traceback.format_exception_only(error)).strip()
    last = traceback.extract_tb(error.__traceback__)[2:][-MOST_FRAMES:]
    frames = with_cell_names("".join(traceback.format_list(last)))
    return f"your function raised {raised}\n{own_frames(frames)}".rstrip()


def own_frames(finding: str) -> str:
    """Remove the frames of libraries and of the checks from a traceback."""
    kept, skip = [], False
    for line in finding.splitlines():
        frame = FRAME.match(line)
        if frame:
            skip = any(part in (frame[1] or "") for part in NOT_THEIRS)
        elif not line.startswith(("    ", "  [Previous line repeated")):
            skip = False
        if not skip:
            kept.append(line)
    return "\n".join(kept)
