"""Name the value that cannot travel, and describe an exception as data that can."""

import inspect
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from helpers.runtime.payload import CannotTravel, kind_name, pack, unpack

DEPTH = 6  # of the search for the value to blame
LONGEST = 10_000  # characters of a message, and of a traceback


def pack_or_name(value: Any, names: Mapping[str, Any], where: str):
    """Return `pack(value)`, or raise a CannotTravel that names the value to blame.

    Args:
        value: the value to send.
        names: the parts of `value`, by the names that the reader knows.
        where: the end of the sentence: "to the ranks", "back to the notebook".

    Raises:
        CannotTravel: a part of `value` has no meaning in another process.
    """
    try:
        return pack(value)
    except CannotTravel as error:
        reason = str(error)
    name, user, culprit = "the value", None, value
    for part_name, part in names.items():
        if found := culprit_in(part, part_name):
            name, user, culprit, _ = found
            break
    raise CannotTravel(
        f"`{name}`{f', which `{user}` uses,' if user else ''} is {article(type(culprit))} and "
        f"cannot travel {where} ({reason}). Make it inside the function, "
        "or send what it is made from."
    ) from None


def named(ranks: Sequence[int]) -> str:
    """Write "rank 2", or "ranks 0, 1 and 3"."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def article(kind: type) -> str:
    name = kind_name(kind)
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class Culprit(NamedTuple):
    """A value that cannot be packed.

    Attributes:
        name: its path, as the reader would write it.
        user: the function that uses it.
        certain: False if a part of it leads back to a value around it, which may be to blame.
    """

    name: str
    user: str | None
    value: Any
    certain: bool = True


def culprit_in(
    value: Any,
    name: str,
    user: str | None = None,
    depth: int = DEPTH,
    around: frozenset = frozenset(),
) -> Culprit | None:
    """Return the innermost part that cannot be packed; None if everything can."""
    try:
        pack(value).close()
        return None
    except CannotTravel:
        pass
    around, back, guess = around | {id(value)}, False, None
    for part_name, part_user, part in parts(value, name, user) if depth else ():
        if id(part) in around:
            back = True
        elif found := culprit_in(part, part_name, part_user, depth - 1, around):
            if found.certain:
                return found
            guess = guess or found
    return guess or Culprit(name, user, value, certain=not back)


def parts(value: Any, name: str, user: str | None) -> Iterator[tuple[str, str | None, Any]]:
    """Yield the parts of a value: their paths, the functions that use them, the values."""
    if inspect.isfunction(value):
        used = inspect.getclosurevars(value)
        for variable, part in {**used.globals, **used.nonlocals}.items():
            yield variable, value.__name__, part
        for parameter in inspect.signature(value).parameters.values():
            yield parameter.name, value.__name__, parameter.default
    elif inspect.ismethod(value):
        yield f"{name}.__self__", user, value.__self__
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield f"{name}[{key!r}]", user, part
    elif isinstance(value, list | tuple | set | frozenset):
        for index, part in enumerate(value):
            yield f"{name}[{index}]", user, part
    elif hasattr(value, "__dict__") and not inspect.ismodule(value):
        for attribute, part in vars(value).items():
            yield f"{name}.{attribute}", user, part


def describe(error: BaseException, skip: str = "") -> dict:
    """Return the exception as the notebook shows it, and the exception itself if it can travel.

    Args:
        skip: the caller's own file; the traceback leaves out its first frames.
    """
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == skip:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return {
        "kind": type(error).__name__,
        "message": shortened(text(error)),
        "traceback": shortened("".join(lines)),
        "when": time.monotonic(),
        "exception": portable(error),
    }


def shortened(text: str) -> str:
    """Keep the beginning and the end of a text that is too long to read."""
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[… {left_out:,} more characters …]\n{text[-half:]}"


def text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the student's own __str__
        return "(no text: the exception's own __str__ fails)"


def portable(error: BaseException) -> bytes | None:
    """Pickle the exception; None if it cannot be rebuilt (a custom `__init__` may prevent that)."""
    try:
        parcel = pack_or_name(error.with_traceback(None), {}, "back to the notebook")
        if parcel.fd is None:
            unpack(parcel)
            return parcel.pickled
        parcel.close()
    except Exception:
        pass
    return None
