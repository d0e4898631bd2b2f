"""What a class reads of the grades: a row for each student, and a page of feedback for each."""

import csv
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import check
from helpers.check.grading.table import Grade, clean
from helpers.check.verdict import Verdict

NO_EXERCISE = "?"
BETTER = ("no", "not graded", "yes")  # of several notebooks of a student, the best counts


@dataclass(frozen=True, kw_only=True)
class Score:
    """A student's result.

    Attributes:
        student: the folder, or the notebook, directly below the submissions.
        rows: all rows of this student.
        passed, missing, by_hand: exercises. Those to judge by hand count neither way.
        points, of: the weights of `passed`, and of `passed` and `missing`.
    """

    student: str
    rows: Sequence[Grade]
    passed: Sequence[str]
    missing: Sequence[str]
    by_hand: Sequence[str]
    points: float
    of: float

    @property
    def percent(self) -> float:
        return round(100 * self.points / self.of, 1) if self.of else 0.0


def scores(rows: Sequence[Grade], weights: Mapping[str, float]) -> list[Score]:
    """Return each student's score, by name. An exercise of one student is asked of all.

    Args:
        weights: of exercises; the others weigh 1, and 0 leaves an exercise out.
    """
    asked = sorted({row.exercise for row in rows if weights.get(row.exercise, 1)} - {NO_EXERCISE})
    by_student: dict[str, list[Grade]] = {}
    for row in rows:  # of ann/week04_….ipynb and of ann.ipynb: ann
        name = row.submission.partition("/")[0].removesuffix(".ipynb")
        by_student.setdefault(name, []).append(row)
    return [score(name, by_student[name], asked, weights) for name in sorted(by_student)]


def score(student: str, rows: Sequence[Grade], asked: Sequence[str], weights) -> Score:
    best = dict.fromkeys(asked, "no")
    for row in rows:
        best[row.exercise] = max(best.get(row.exercise, "no"), row.passed, key=BETTER.index)
    missing, by_hand, passed = ([one for one in asked if best[one] == kind] for kind in BETTER)
    points, lost = (sum(weights.get(one, 1.0) for one in some) for some in (passed, missing))
    return Score(
        student=student,
        rows=rows,
        passed=passed,
        missing=missing,
        by_hand=by_hand,
        points=points,
        of=points + lost,
    )


def read_weights(file: Path) -> dict[str, float]:
    """Return {exercise: weight}, from lines such as `zero_1,3`.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line has no number, a negative one, or no exercise of the course.
    """
    weights = {}
    for line in file.read_text(encoding="utf-8-sig").splitlines():  # a spreadsheet writes a mark
        if not line.strip():
            continue
        name, _, weight = line.strip().partition(",")
        weights[name] = float(weight)
        if name not in check.__all__:
            raise ValueError(f"there is no exercise {name!r}")
        if not 0 <= weights[name] < float("inf"):
            raise ValueError(f"a weight is 0 or more: {line}")
    return weights


def write_scores(folder: Path, found: Sequence[Score]):
    """Write scores.csv, a row a student, and feedback/NAME.html into the folder.

    Raises:
        OSError: the folder cannot be written.
    """
    with (folder / "scores.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["student", "percent", "points", "of", "not passed", "by hand"])
        for one in found:
            numbers = (f"{number:g}" for number in (one.percent, one.points, one.of))
            lists = (" ".join(one.missing), " ".join(one.by_hand))
            writer.writerow([clean(one.student), *numbers, *lists])
    (folder / "feedback").mkdir(exist_ok=True)
    for one in found:
        place = folder / "feedback" / f"{one.student}.html"
        place.write_text(page(one), encoding="utf-8", errors="replace")


def page(score: Score) -> str:
    """Return the student's page, in HTML; it tells nothing of other students."""
    name = html.escape(score.student)
    lines = [
        f"<!doctype html><meta charset='utf-8'><title>{name}</title><h1>{name}</h1>",
        f"<p>{score.points:g} of {score.of:g} points: {score.percent:g} %</p>",
    ]
    for row in score.rows:
        if row.passed == "not graded":
            verdict = f"<p>{html.escape(row.exercise)}: {html.escape(row.finding)}</p>"
        else:
            status = "passed" if row.passed == "yes" else "wrong"
            verdict = Verdict(row.exercise, status, row.finding)._repr_html_()
        lines.append(f"<h3>{html.escape(row.submission)}</h3>{verdict}")
    absent = [one for one in score.missing if one not in {row.exercise for row in score.rows}]
    lines.append(f"<p>Not handed in: {', '.join(absent)}</p>" if absent else "")
    return "\n".join(lines)
