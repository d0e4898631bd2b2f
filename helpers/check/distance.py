"""How far a prediction is from a number: in words, and as a bar on a logarithmic scale."""

import math

CLOSE = 0.1  # relative; a prediction needs the right size, not the right digits
SIDE = 8  # blocks on each side of the bar; each block is a factor of 2
NAMES = {
    "formula": "the formula's value",
    "simulated": "the simulated value",
    "published": "the published value",
    "measured": "the measured value",
}


def ratio(prediction, value) -> float | None:
    """The prediction over the value; None where no ratio exists (words, zero, another sign)."""
    if is_label(prediction) or is_label(value):
        return 1.0 if same(prediction, value) else None
    if prediction == value:
        return 1.0
    if not prediction or not value or (prediction < 0) != (value < 0):
        return None
    return prediction / value


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
    if 0.5 < times < 2:
        side = "above" if times > 1 else "below"
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
