"""Answers of a student's function: which a check can compare, how two differ, and in words."""

import math
import re
from numbers import Real

import numpy as np
import torch

LARGEST = 1e300  # the ratio of two numbers must stay a float
DEEP = 4  # lists within lists
SHOWN = 60  # characters


def is_number(answer) -> bool:
    """Whether the answer is a real number; True and False are not."""
    return isinstance(answer, Real) and not isinstance(answer, bool)


def as_python(number: Real) -> int | float:
    """Return a number of NumPy, or a fraction, as a float: those warn, or cannot be formatted."""
    return number if isinstance(number, int | float) else float(number)


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


def in_a_line(error: BaseException) -> str:
    """Return the error's type, and the first line of its text."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def short(answer) -> str:
    """Return the answer as a short text, for a finding."""
    if isinstance(answer, torch.Tensor) and answer.numel() > 8:
        return f"a tensor of shape {tuple(answer.shape)}"
    try:
        text = repr(answer)
    except Exception as error:  # the student's own __repr__, or too many digits
        return f"a value of type {type(answer).__name__} ({type(error).__name__} when printed)"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def same(found, right, close: float = 0.0, blank: bool = False) -> bool:
    """Whether two answers agree: numbers within `close`, lists and dicts part by part.

    A list counts as a tuple, and the dtype of a tensor does not matter.

    Args:
        blank: where the right tensor has no finite number, there may be 0, or none either.
    """
    if isinstance(found, np.ndarray) and isinstance(right, np.ndarray):
        found, right = torch.as_tensor(found), torch.as_tensor(right)
    if isinstance(right, torch.Tensor):
        if not isinstance(found, torch.Tensor) or found.shape != right.shape:
            return False
        if found.is_complex():  # its imaginary part would be lost, with a warning
            return False
        found, right = found.detach().double(), right.detach().double()
        if blank:
            where = right.isfinite()
            if (found[~where].nan_to_num(posinf=0, neginf=0) != 0).any():
                return False
            found, right = found[where], right[where]
        return torch.allclose(found, right, rtol=close, atol=close)
    if is_number(right):
        if not is_number(found):
            return False
        found = as_python(found)
        if abs(found) > LARGEST or abs(right) > LARGEST:
            return found == right
        off = math.isclose(found, right, rel_tol=close, abs_tol=close * (abs(right) < 1))
        return found == right or off or (blank and found != found and right != right)
    if isinstance(right, list | tuple):
        alike = isinstance(found, list | tuple) and len(found) == len(right)
        return alike and all(same(*pair, close, blank) for pair in zip(found, right, strict=True))
    if isinstance(right, dict):
        alike = isinstance(found, dict) and found.keys() == right.keys()
        return alike and all(same(found[key], right[key], close, blank) for key in right)
    return type(found) is type(right) and bool(found == right)


def alike(found, wrong, close: float) -> bool:
    """Whether a mistake gives this. A query that sees nothing gives NaN in some ways of writing,
    and 0 in others."""
    return same(found, wrong, max(close, 1e-9), blank=True)


def plain(answer):
    """Return the answer as it travels from a rank: tensors detached, other values by their type."""
    if isinstance(answer, torch.Tensor):
        return answer.detach().clone()
    if isinstance(answer, list | tuple):
        return tuple(map(plain, answer))
    if isinstance(answer, dict):
        return {str(key): plain(value) for key, value in answer.items()}
    if answer is None or isinstance(answer, bool | str) or is_number(answer):
        return answer.item() if isinstance(answer, np.generic) else answer
    return f"a value of type {type(answer).__name__}"


def difference(found, right) -> tuple[str, str]:
    """Return how an answer differs from the right one, in words, and a hint.

    The words complete a sentence: "rank 1 returned …".
    """
    if isinstance(right, torch.Tensor):
        return tensor_difference(found, right)
    if is_number(right):
        if not is_number(found):
            return short(found), "Return one number."
        found = as_python(found)
        return f"{found:,.12g}; it is {right:,.12g}", factor_hint(found, right)
    if isinstance(right, list | tuple):
        if not isinstance(found, list | tuple):
            return short(found), f"Return {len(right)} values."
        if len(found) != len(right):
            return f"{len(found)} values, not {len(right)}", "How many values does it have?"
        pairs = enumerate(zip(found, right, strict=True))
        number, pair = next((n, pair) for n, pair in pairs if not same(*pair))
        words, hint = difference(*pair)
        return f"{words} (value {number + 1} of {len(right)})", hint
    if isinstance(right, dict):
        if not isinstance(found, dict) or found.keys() != right.keys():
            given = list(found) if isinstance(found, dict) else short(found)
            return f"{given}, not {list(right)}", "Look at the names again."
        name = next(name for name in right if not same(found[name], right[name]))
        words, hint = difference(found[name], right[name])
        return f"{words} as {name!r}", hint
    return f"{short(found)}, not {short(right)}", ""


def tensor_difference(found, right: torch.Tensor) -> tuple[str, str]:
    if not isinstance(found, torch.Tensor):
        return short(found), "Return a tensor."
    if found.shape != right.shape:
        return (
            f"a tensor of shape {tuple(found.shape)}, not {tuple(right.shape)}",
            "A wrong shape. Which dims must the result have, and which dims did you sum over, or "
            "forget to sum over or to cut?",
        )
    found, exact = found.double(), right.double()
    if not found.isfinite().all() and exact.isfinite().all():
        return (
            "numbers that are not finite",
            "Some are not finite: which line divides by 0, takes the logarithm of 0, or overflows?",
        )
    off = (found - exact).abs()
    words = f"numbers that are off by up to {float(off.max()):.2g}"
    wrong = int((off > 1e-12 * exact.abs().max()).sum())
    if 0 < wrong < off.numel():
        words += f" ({wrong} of {off.numel()} are wrong)"
    if torch.allclose(found, exact, rtol=1e-5, atol=1e-6):
        return words, "They are right to some digits. Which line makes a tensor of another dtype?"
    factor = float((found * exact).sum() / (exact * exact).sum()) if exact.any() else 0.0
    if math.isfinite(factor) and torch.allclose(found, factor * exact, rtol=1e-9, atol=1e-12):
        return words, factor_hint(factor, 1.0)
    return words, ""


def factor_hint(found: float, right: float) -> str:
    """Name a whole factor between the two."""
    if not right or not math.isfinite(found):
        return ""
    if found == 0:
        return "It is 0. Which line adds to it?"
    if found == -right:
        return "The sign is wrong."
    times = found / right
    for ratio, words in ((times, "too large"), (1 / times, "too small")):
        if 2 <= ratio <= 64 and abs(ratio - round(ratio)) < 1e-9:
            return f"That is {round(ratio)} times {words}."
    return ""


def error_words(error: str) -> str:
    """An error without its numbers: two functions that fail alike fail so with other sizes too."""
    return re.sub(r"\d+", "#", error)
