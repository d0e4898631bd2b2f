"""Predict, run, explain: a student's number beside the formula's and the measured one."""

import html
from dataclasses import dataclass

CLOSE = 0.1  # relative; a prediction is to have the right size, not the right digits


@dataclass(frozen=True)
class SideBySide:
    """One row: what, your prediction, the formula, what was measured. Draws itself."""

    what: str
    prediction: float | None
    formula: float | None
    measured: float
    unit: str = ""

    def comment(self) -> str:
        if self.prediction is None:
            return "write your prediction into the cell, then run it again"
        if self.measured == self.prediction:
            return "as predicted"
        if self.measured and abs(self.prediction / self.measured - 1) <= CLOSE:
            return "close"
        if self.measured and self.prediction:
            factor = self.prediction / self.measured
            times = f"{factor:.3g} times" if factor > 1 else f"1/{1 / factor:.3g} of"
            return f"you said {times} what was measured: why?"
        return "not what was measured: why?"

    def cells(self) -> dict[str, str]:
        row = {"your prediction": number(self.prediction)}
        if self.formula is not None:
            row["formula"] = number(self.formula)
        row["measured here"] = number(self.measured)
        return row

    def __repr__(self):
        row = ", ".join(f"{name} {value}" for name, value in self.cells().items())
        return f"{self.what}{f' ({self.unit})' if self.unit else ''}: {row} — {self.comment()}"

    def _repr_html_(self):
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.cells())
        row = "".join(f"<td><b>{value}</b></td>" for value in self.cells().values())
        title = f"{html.escape(self.what)}{f', {html.escape(self.unit)}' if self.unit else ''}"
        return (
            f"<table><tr><th>{title}</th>{head}<th></th></tr>"
            f"<tr><td></td>{row}<td>{html.escape(self.comment())}</td></tr></table>"
        )


def side_by_side(what: str, *, prediction, measured, formula=None, unit: str = "") -> SideBySide:
    """Set a prediction (None: not made yet) beside a formula's number and a measured one.

    Args:
        what: the quantity, and `unit` what it is counted in ("bytes", "seconds", …).

    Raises:
        TypeError: the prediction is not a number.
    """
    if prediction is not None and not isinstance(prediction, int | float):
        raise TypeError(f"prediction is to be a number, not {prediction!r}")
    return SideBySide(what, prediction, formula, measured, unit)


def number(value) -> str:
    if value is None:
        return "?"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"
