"""Name the value that cannot travel, as the student wrote it."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from helpers.runtime.payload import CannotTravel, pack

DEPTH = 6


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


def article(kind: type) -> str:
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
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
