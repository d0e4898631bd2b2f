"""Predict, run, explain: an answer that stays closed until the student has predicted.

How a notebook asks:

1. A text cell asks the question. Neither this text nor any cell above holds the answer.
2. A code cell of its own holds nothing but comments and one line for each prediction. Each
   prediction has a name that no other question uses, so any order of running keeps them apart:

       # Predict: how long does a message of 8 bytes take, in microseconds?
       prediction_small = None

3. The next code cell runs the experiment and ends with `side_by_side(…)`. The student writes a
   number above, runs that cell, and runs the experiment again. Compute `formula=`; a literal there
   is the answer. Assert exact numbers in a cell below. Where the student is to find the formula,
   leave `formula=` out: the prediction is the student's expression.
4. A figure or table that shows the answer goes into `side_by_side(…, also=…)`, or into
   `reveal(…, prediction=…)` in a cell of its own.
5. The first text below names the answer only inside a fold. The blank lines are needed:

       <details><summary>After you have predicted</summary>

       The message takes …

       </details>

6. `prediction_sheet()` is the last code cell.

`tests/notebooks/walk.py` finds what breaks these rules. Commit notebooks without predictions.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from helpers.check.question import Question, plain
from helpers.check.sheet import remember
from helpers.plots.page import Markup, cell, folded, markup, table
from helpers.runtime.screen import shell

FIRST = "predict first, then open"
COLUMNS = ("your prediction", "formula", "simulated", "published", "measured here")


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Predictions beside their answers. Draws itself; an answer without prediction is folded.

    Attributes:
        questions: one for each row of the table.
        also: what to show under the table (figures, tables, texts).
        opened: show the answers even without predictions.
    """

    questions: tuple[Question, ...]
    also: tuple[object, ...] = ()
    opened: bool = False

    def open(self) -> "SideBySide":
        """The same with every answer shown, predicted or not."""
        return replace(self, opened=True)

    def shows(self, question: Question) -> bool:
        return self.opened or question.predicted

    def __repr__(self):
        lines = []
        for question in self.questions:
            if self.shows(question):
                row = ", ".join(f"{name} {value}" for name, value in question.cells().items())
                lines.append(f"{question.title}: {row}. {question.comment()}")
            else:
                lines.append(f"{question.title}: {question.complaint or f'{FIRST}: _.open()'}")
        if all(map(self.shows, self.questions)):
            lines += map(as_text, self.also)
        return "\n".join(lines)

    def _repr_html_(self):
        shown = [question for question in self.questions if self.shows(question)]
        closed = [question for question in self.questions if not self.shows(question)]
        start = rows(shown) if shown else ""
        also = "".join(map(markup, self.also))
        if not closed:
            return start + also
        lines = (f"<b>{cell(q.title)}</b>: {cell(q.complaint or FIRST)}" for q in closed)
        return start + folded("<br>".join(lines), rows(closed) + also)


@dataclass(frozen=True)
class Answer:
    """Figures, tables and texts that show an answer: folded until the student has predicted."""

    what: str
    shown: tuple[object, ...]
    opened: bool

    def open(self) -> "Answer":
        """The same, shown."""
        return replace(self, opened=True)

    def __repr__(self):
        if self.opened:
            return "\n".join(map(as_text, self.shown))
        return f"{self.what}: {FIRST}: _.open()"

    def _repr_html_(self):
        body = "".join(map(markup, self.shown))
        return body if self.opened else folded(f"<b>{cell(self.what)}</b>: {FIRST}", body)


def side_by_side(
    what: str | Sequence[str],
    *,
    prediction,
    formula=None,
    simulated=None,
    published=None,
    measured=None,
    unit: str = "",
    also=(),
) -> SideBySide:
    """Compare a prediction with a formula's number, a measured number and others.

    While the prediction is None, the answer is folded. For several questions, `what`, `prediction`
    and each of the numbers are lists of the same length. An answer that is a word, or True or
    False, is compared as a word. The questions go onto the sheet (`prediction_sheet`).

    Args:
        what: the quantity asked for, under a name that the notebook uses once.
        prediction: the student's number; None: not made yet.
        formula, simulated, published, measured: the answer by each source. The prediction is
            judged by the last that is given.
        unit: the unit of all the numbers ("bytes", "seconds", …).
        also: a figure, table or text that gives the answer away, or a list of such; folded too.

    Raises:
        TypeError: no number to compare with, or lists of different lengths. A prediction that is
            not a number raises nothing: the line says what to write.
    """
    several = not isinstance(what, str)
    names = list(what) if several else [what]
    given = {
        "formula": formula,
        "simulated": simulated,
        "published": published,
        "measured": measured,
    }
    columns = {"prediction": prediction, **{s: v for s, v in given.items() if v is not None}}
    columns = {name: list(v) if several else [v] for name, v in columns.items()}
    if any(len(values) != len(names) for values in columns.values()):
        lengths = {name: len(values) for name, values in columns.items()}
        raise TypeError(f"{len(names)} questions need as many values each, not {lengths}")
    predictions = columns.pop("prediction")
    questions = []
    for i, (name, said) in enumerate(zip(names, predictions, strict=True)):
        numbers = {s: plain(values[i]) for s, values in columns.items() if values[i] is not None}
        questions.append(Question(what=name, prediction=plain(said), numbers=numbers, unit=unit))
    for question in questions:
        remember(question)
    also = tuple(also) if isinstance(also, list | tuple) else (also,)
    leave_pyplot(also)
    return SideBySide(questions=tuple(questions), also=also)


def reveal(*shown, prediction, what: str = "the answer") -> Answer:
    """Show figures, tables or texts that give an answer away: folded until it is predicted.

    Args:
        shown: what to show, in this order.
        prediction: the prediction, or a list of several; folded while any of them is None.
        what: a name for the line that is visible, such as "the learning curves".
    """
    made = prediction if isinstance(prediction, list | tuple) else [prediction]
    leave_pyplot(shown)
    return Answer(what, shown, all(one is not None for one in made))


def forget(result):
    """After a cell that failed, forget its predictions: else the next cell judges older numbers."""
    if not result.success:
        names = re.findall(r"^(prediction\w*) *=(?!=)", result.info.raw_cell, re.MULTILINE)
        shell().user_ns.update(dict.fromkeys(names))


def as_text(shown: object) -> str:
    """A text as it is, anything else by its repr: a figure's is its alternative text."""
    return shown if isinstance(shown, str) else repr(shown)


def leave_pyplot(shown: Sequence[object]):
    """Close pyplot's figures: else Jupyter draws them at the end of the cell, unfolded."""
    if "matplotlib.pyplot" in sys.modules:
        from matplotlib import pyplot
        from matplotlib.figure import Figure

        for one in shown:
            if isinstance(one, Figure):
                pyplot.close(one)


def rows(questions: Sequence[Question]) -> str:
    """The HTML table of these questions."""
    found = [question.cells() for question in questions]
    head = [name for name in COLUMNS if any(name in row for row in found)]
    body = []
    for question, row in zip(questions, found, strict=True):
        values = [Markup(f"<b>{cell(row.get(name, ''))}</b>") for name in head]
        body.append([question.title, *values, question.comment() if question.predicted else ""])
    return table(body, head=["", *head, ""])


if shell():  # from the first import on: a cell may fail before the first question
    shell().events.register("post_run_cell", forget)
