"""Predict, run, explain: a student's number beside the formula's and the measured one."""

from dataclasses import dataclass

from helpers.plots.table import Markup, table

CLOSE = 0.1  # relative; a prediction is to have the right size, not the right digits


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """One row: what, your prediction, and the numbers to hold it against. Draws itself.

    Attributes:
        numbers: by where they come from: "formula", "simulated", "published", "measured". The
            prediction is judged by the last.
    """

    what: str
    prediction: float | None
    numbers: dict[str, float]
    unit: str = ""

    def comment(self) -> str:
        if self.prediction is None:
            return "write your prediction into the cell, then run it again"
        source, value = list(self.numbers.items())[-1]
        if value == self.prediction:
            return "as predicted"
        if value and abs(self.prediction / value - 1) <= CLOSE:
            return "close"
        said = "what was measured" if source == "measured" else f"the {source} number"
        if value and self.prediction:
            factor = self.prediction / value
            times = f"{factor:.3g} times" if factor > 1 else f"1/{1 / factor:.3g} of"
            return f"you said {times} {said}: why?"
        return f"not {said}: why?"

    def cells(self) -> dict[str, str]:
        row = {"your prediction": number(self.prediction)}
        for source, value in self.numbers.items():
            row["measured here" if source == "measured" else source] = number(value)
        return row

    def __repr__(self):
        row = ", ".join(f"{name} {value}" for name, value in self.cells().items())
        return f"{self.what}{f' ({self.unit})' if self.unit else ''}: {row} — {self.comment()}"

    def _repr_html_(self):
        title = f"{self.what}{f', {self.unit}' if self.unit else ''}"
        row = [Markup(f"<b>{value}</b>") for value in self.cells().values()]
        return table([["", *row, self.comment()]], head=[title, *self.cells(), ""])


def side_by_side(
    what: str,
    *,
    prediction,
    formula=None,
    simulated=None,
    published=None,
    measured=None,
    unit: str = "",
) -> SideBySide:
    """Set a prediction (None: not made yet) beside a formula's number, a measured one, ….

    Args:
        what: the quantity, and `unit` what it is counted in ("bytes", "seconds", …).

    Raises:
        TypeError: the prediction is not a number, or there is nothing beside it.
    """
    if prediction is not None and not isinstance(prediction, int | float):
        raise TypeError(f"prediction is to be a number, not {prediction!r}")
    given = {
        "formula": formula,
        "simulated": simulated,
        "published": published,
        "measured": measured,
    }
    numbers = {source: value for source, value in given.items() if value is not None}
    if not numbers:
        raise TypeError("a prediction needs a number beside it: formula=, measured=, …")
    return SideBySide(what=what, prediction=prediction, numbers=numbers, unit=unit)


def number(value) -> str:
    if value is None:
        return "?"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"
