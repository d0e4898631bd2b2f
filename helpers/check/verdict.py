"""The result of an exercise's check: the first mistake in one line, and a hint."""

import html
from dataclasses import dataclass

MARKS = {"passed": ("✓", "#009e73"), "wrong": ("✗", "#d55e00"), "not written yet": ("…", "#666666")}


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
