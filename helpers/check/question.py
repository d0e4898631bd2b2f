"""One question of a notebook: the student's prediction, and the numbers to compare it with.

How far off a prediction is: in words, and as a bar on a logarithmic scale.
"""

import math
from dataclasses import dataclass
from numbers import Real

LARGEST = 1e300  # the ratio of two numbers must stay a float
CLOSE = 0.1  # relative; a prediction needs the right size, not the right digits
SIZE = 0.25  # relative; farther off, it is too large or too small
RIGHT = 0.001  # relative; a measurement has a few bytes or microseconds of its own
SIDE = 8  # blocks on each side of the bar; each block is a factor of 2
NAMES = {
    "formula": "the formula's value",
    "simulated": "the simulated value",
    "published": "the published value",
    "measured": "the measured value",
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, the prediction (None: not made yet), and the answer from each source.

    Attributes:
        what: the quantity; it is the question's name, so a notebook uses it once.
        prediction: a number, or a word where the answer is a word.
        numbers: the answers by source: "formula", "simulated", "published", "measured". The
            prediction is judged by the last.
        unit: the unit of all the numbers ("bytes", "seconds", …).

    Raises:
        TypeError: no number to compare with, or a value that is neither a number nor a word.
    """

    what: str
    prediction: object
    numbers: dict[str, object]
    unit: str = ""

    def __post_init__(self):
        for source, value in self.numbers.items():
            if not (is_number(value) or is_label(value)):
                raise TypeError(f"{self.what}: {source}= needs a number, not {short(value)}")
        if not self.numbers:
            raise TypeError(f"{self.what}: nothing to compare with; give formula=, measured=, …")

    @property
    def title(self) -> str:
        return f"{self.what} ({self.unit})" if self.unit else self.what

    @property
    def predicted(self) -> bool:
        """Whether the student has made a prediction that can be compared."""
        return self.prediction is not None and not self.complaint

    @property
    def complaint(self) -> str:
        """What is wrong with the prediction, and what to write instead; "" if nothing is."""
        value = self.judged_by[1]
        if self.prediction is None or is_label(value) or is_number(self.prediction):
            return ""
        unit = f" of {self.unit}" if self.unit else ""
        return (
            f"{short(self.prediction)} is not a number. Write a number{unit} without quotes, "
            "for example 12 or 3.4e5."
        )

    @property
    def judged_by(self) -> tuple[str, object]:
        """The last source and its value."""
        return list(self.numbers.items())[-1]

    def comment(self) -> str:
        """How far off the prediction is, or what is missing."""
        if not self.predicted:
            return self.complaint or "Not predicted yet."
        source, value = self.judged_by
        far = is_far(self.prediction, value)
        ask = " Which assumption makes the difference?" if far else ""
        return words(self.prediction, value, source) + ask

    def cells(self) -> dict[str, str]:
        """The numbers as text, by the names of their columns; without a prediction, no column."""
        row = {"your prediction": number(self.prediction)} if self.predicted else {}
        for source, value in self.numbers.items():
            row["measured here" if source == "measured" else source] = number(value)
        return row


def is_number(value) -> bool:
    """A real number; True and False are none."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and abs(value) <= LARGEST  # false for infinity and nan, too


def plain(value):
    """The Python number of an array, tensor or fraction of one value; other values as they are."""
    if hasattr(value, "item"):
        try:
            return value.item()
        except (ValueError, RuntimeError):  # several values
            return value
    if isinstance(value, Real) and not isinstance(value, int):
        return float(value)
    return value


def number(value) -> str:
    """A number as text, with four digits unless it is an integer; a word as it is."""
    if not is_number(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"


def short(value, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def ratio(prediction, value) -> float | None:
    """The prediction over the value; None where no ratio exists (words, zero, another sign)."""
    if is_label(prediction) or is_label(value):
        return 1.0 if same(prediction, value) else None
    if prediction == value:
        return 1.0
    if not prediction or not value or (prediction < 0) != (value < 0):
        return None
    return min(max(prediction / value, 1 / LARGEST), LARGEST)


def is_label(value) -> bool:
    """An answer that names something: it is right or wrong, and never close."""
    return isinstance(value, str | bool)


def same(prediction, value) -> bool:
    """Whether two labels agree; upper case, spaces around them and the type do not matter."""
    return str(prediction).strip().casefold() == str(value).strip().casefold()


def words(prediction, value, source: str) -> str:
    """One sentence on how far off the prediction is.

    Args:
        source: where the value comes from: "formula", "simulated", "published" or "measured".
    """
    times, name = ratio(prediction, value), NAMES[source]
    if times is None:
        return f"Different from {name}."
    if math.isclose(times, 1, rel_tol=1e-9):  # an expression may round differently
        return "Exactly right."
    if abs(times - 1) < RIGHT:
        return f"Right: {name} differs by less than {100 * RIGHT:g} %."
    if 0.5 < times < 2:
        side = "above" if times > 1 else "below"
        start = "Too large" if times > 1 else "Too small"
        if abs(times - 1) <= SIZE:
            start = "Close" if is_close(prediction, value) else "The right size"
        percent = 100 * abs(times - 1)
        return f"{start}: {percent:{'.0f' if percent >= 10 else '.2g'}} % {side} {name}."
    if times >= 2:
        return f"Your prediction is {times:.3g} times {name}."
    return f"{name[0].upper()}{name[1:]} is {1 / times:.3g} times your prediction."


def is_far(prediction, value) -> bool:
    """Whether a number is off by a factor of 2 or more."""
    times = ratio(prediction, value)
    return not is_label(value) and (times is None or not 0.5 < times < 2)


def is_close(prediction, value) -> bool:
    times = ratio(prediction, value)
    return times is not None and abs(times - 1) <= CLOSE + 1e-9


def bar(prediction, value) -> str:
    """A bar of text around a centre line: each block is a factor of 2, to the left for too small.

    A dot on the centre line is a close prediction. An arrow at the end is a bar that does not fit.
    """
    times = ratio(prediction, value)
    if times is None:
        return ""
    if is_close(prediction, value):
        return f"{' ' * SIDE}●{' ' * SIDE}"
    blocks = math.ceil(abs(math.log2(times)))
    right = "█" * min(blocks, SIDE) if blocks <= SIDE else "█" * (SIDE - 1) + "▶"
    if times > 1:
        return f"{' ' * SIDE}│{right:<{SIDE}}"
    return f"{right[::-1].replace('▶', '◀'):>{SIDE}}│{' ' * SIDE}"
