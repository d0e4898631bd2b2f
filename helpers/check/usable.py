"""Which answers a check can compare: no complex numbers, and none that no float holds.

And what a finding says of the others.
"""

import numpy as np
import torch

LARGEST = 1e300  # the ratio of two numbers must stay a float
DEEP = 4  # lists within lists
SHOWN = 60  # characters


def oddity(answer, deep: int = DEEP) -> str:
    """Return what is odd about an answer, or about a part of it; "" if nothing is."""
    if isinstance(answer, torch.Tensor):
        return "a tensor of complex numbers" * answer.is_complex()
    if isinstance(answer, np.ndarray):
        return "an array of complex numbers" * np.iscomplexobj(answer)
    if isinstance(answer, complex | np.complexfloating):
        return "a complex number"
    if isinstance(answer, int) and abs(answer) > LARGEST:
        return "a whole number of more than 300 digits"
    if deep and isinstance(answer, list | tuple | dict):
        parts = answer.values() if isinstance(answer, dict) else answer
        return next(filter(None, (oddity(part, deep - 1) for part in parts)), "")
    return ""


def in_a_line(error: Exception) -> str:
    """Return the error's type, and the first line of its text."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def short(answer) -> str:
    """Return the answer as a short text, for a finding."""
    try:
        text = repr(answer)
    except Exception as error:  # the student's own __repr__, or too many digits
        return f"a value of type {type(answer).__name__} ({type(error).__name__} when printed)"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
