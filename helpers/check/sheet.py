"""The sheet of predictions: every question of this notebook, asked so far, in a table."""

from dataclasses import dataclass

from helpers.check.question import Question, bar, is_close, number, words
from helpers.plots.page import Markup, cell, table

HEAD = ["asked", "your prediction", "answer", "█: a factor of 2", "how far off"]
_asked: dict[str, Question] = {}  # by what was asked; this kernel's, in the order of asking


def remember(question: Question):
    """Put a question on the sheet. A question with the same name replaces the earlier, in place."""
    _asked[question.what] = question


def prediction_sheet() -> "Sheet":
    """The table of all predictions in this notebook: asked, your number, the answer, how far off.

    Run every experiment first. After you have changed a prediction, run its cell, the cell of its
    experiment and this cell again. A question without a prediction shows no answer.
    """
    return Sheet(tuple(_asked.values()))


@dataclass(frozen=True)
class Sheet:
    """Draws itself as a table, in a notebook and in a terminal."""

    questions: tuple[Question, ...]

    def summary(self) -> str:
        """One kind sentence or two on all predictions together."""
        if not self.questions:
            return "No question was asked yet. Run the notebook from the top."
        made = [q for q in self.questions if q.predicted]
        count = f"{len(made)} of {len(self.questions)} predicted"
        if not made:
            return f"{count}. Write your predictions, run the experiments again, then this cell."
        close = sum(is_close(q.prediction, q.judged_by[1]) for q in made)
        learn = "The largest surprise is the best place to learn." if close < len(made) else ""
        return f"{count}, {close} of them close (within 10 %). {learn}".rstrip()

    def rows(self) -> list[list[str]]:
        return [row(question) for question in self.questions]

    def __repr__(self):
        if not self.questions:
            return self.summary()
        lines = [HEAD, *self.rows()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
        text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*text, self.summary()])

    def _repr_html_(self):
        rows = [[*start, fixed(drawn), far] for *start, drawn, far in self.rows()]
        sides = ["left", "left", "left", "center", "left"]
        body = table(rows, head=HEAD, align=sides) if rows else ""
        return f"{body}<p>{cell(self.summary())}</p>"


def row(question: Question) -> list[str]:
    """The cells of one question; without a prediction, no cell holds the answer."""
    if not question.predicted:
        missing = "not predicted yet" if question.prediction is None else "not a number"
        return [question.title, missing, "", "", ""]
    source, value = question.judged_by
    said = question.prediction
    far = words(said, value, source)
    return [question.title, number(said), number(value), bar(said, value), far]


def fixed(drawn: str) -> Markup:
    """The bar in letters of one width, so that the centre lines agree."""
    return Markup(f"<code style='white-space:pre'>{drawn}</code>" if drawn else "")
