"""Results as JSON: every program can read it, and reading it runs no code."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST = 1_000_000  # elements of one tensor; larger things belong in a file of their own
LARGEST_INTEGER = 10_000  # bits; Python reads back no longer integers


def as_json(value: Any, name: str) -> Any:
    """Convert `value` to JSON's own types: tensors, arrays and tuples become (nested) lists.

    Args:
        name: the value as the reader would write it, for the error.

    Raises:
        TypeError: a part of it has no form in JSON; names the part, as `name['key'][3]`.
    """
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        if value.bit_length() > LARGEST_INTEGER:
            raise TypeError(
                f"{name} is a whole number of {value.bit_length():,} bits, more than the "
                f"{LARGEST_INTEGER:,} that JSON can keep here: return it as text, hex(…)"
            )
        return value
    if isinstance(value, list | tuple):
        return [as_json(part, f"{name}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    f"a key of {name} is {key!r}, and in JSON keys are words: use str(…), or a list"
                )
        return {str(key): as_json(part, f"{name}[{key!r}]") for key, part in value.items()}
    if hasattr(value, "tolist"):  # tensors, arrays, and single numbers of NumPy
        size = value.numel() if hasattr(value, "numel") else value.size
        if size > LARGEST:
            raise TypeError(
                f"{name} has {size:,} elements, and a result keeps at most {LARGEST:,}: "
                "save it to a file from the function, or return less of it"
            )
        return as_json(value.tolist(), name)
    kind = type(value)
    full = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    raise TypeError(
        f"{name} is of type {full}, and results are kept as JSON: return numbers, words, lists, "
        "dicts or tensors"
    )


def write_json(path: str | os.PathLike, value: Any):
    """Write the whole file or nothing: a reader never sees half a file."""
    path = Path(path)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(value, file)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def read_json(path: str | os.PathLike) -> dict:
    """Read the JSON object in the file.

    Raises:
        ValueError: the file contains no JSON object.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} holds no results: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no results, but a JSON {type(value).__name__}")
    return value
