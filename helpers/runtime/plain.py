"""Serialize plain data without pickle: reading it runs no code of its writer.

Some sockets can be reached by other processes, and reading a pickle runs its writer's code. So what
comes over a process group is JSON and the bytes of tensors: `encode`, `decode`. Files of results
are JSON alone, which every program can read: `as_json`, `write_json`, `read_json`.
"""

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from helpers.runtime.payload import CannotTravel, kind_name
from helpers.runtime.private import write_whole

LENGTH = struct.Struct("<Q")  # bytes of the JSON; the bytes of tensors follow
LARGEST = 1_000_000  # elements of one tensor in a file of results
LARGEST_INTEGER = 10_000  # bits; Python reads back no longer decimals
PLAIN = (type(None), bool, int, float, str)
SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}
KINDS = "biufcSUmM"  # NumPy's numbers, words and times
ADVICE = (
    "Under a launcher, return numbers, words, bytes, lists, tuples, sets, dicts, tensors or "
    "arrays: model.state_dict(), dataclasses.asdict(…), frame.to_dict('list')."
)
Types = Mapping[type, Callable[[Any], dict]]  # own types, and how to get a value's fields


def encode(values: Mapping[str, Any], types: Types | None = None) -> bytes:
    """Pack values into one string of bytes, for `decode`.

    Tensors that share memory arrive apart, and no autograd graph arrives.

    Args:
        values: the values, by the names that the reader knows; an error repeats the name.
        types: further types that may travel. `decode` calls the type with the fields.

    Raises:
        CannotTravel: a part is no plain data; names the part, and what to return instead.
    """
    writer = Writer(types or {})
    nodes = []
    for name, value in values.items():
        try:
            nodes.append(writer.node(value, name))
        except RecursionError:
            raise CannotTravel(f"`{name}` is nested too deeply, or contains itself") from None
    text = json.dumps(nodes).encode()
    return b"".join([LENGTH.pack(len(text)), text, *writer.buffers])


class Writer:
    """Turns values into JSON's types; the bytes of tensors go to `buffers`."""

    def __init__(self, types: Types):
        self.types = types
        self.buffers: list[bytes] = []

    def node(self, value, name: str):
        kind = type(value)
        if kind is int and value.bit_length() > LARGEST_INTEGER:
            return {"integer": hex(value)}
        if kind in PLAIN:
            return value
        if kind is list:
            return self.items(value, name)
        if kind is dict or (kind.__name__ == "OrderedDict" and isinstance(value, dict)):
            return {"dict": self.pairs(value, name)}  # a state_dict is an OrderedDict
        if kind in self.types:
            return {"own": [kind.__name__, self.pairs(self.types[kind](value), name)]}
        for word, sequence in SEQUENCES.items():
            if kind is sequence:
                return {word: self.items(value, name)}
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        if kind is bytes:
            return {"bytes": self.keep(value)}
        if kind in (torch.dtype, torch.device):
            return {kind.__name__: str(value).removeprefix("torch.")}
        dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
        if dense and not value.is_quantized:
            return self.tensor(value)
        if kind is np.ndarray or isinstance(value, np.generic):
            array = np.asarray(value, order="C")
            if array.dtype.kind in KINDS:
                word = "array" if kind is np.ndarray else "number"
                return {word: [array.dtype.str, array.shape, self.keep(array.tobytes())]}
        raise CannotTravel(
            f"`{name}` is of type {kind_name(kind)} and cannot travel to the other ranks. {ADVICE}"
        )

    def items(self, values, name: str) -> list:
        return [self.node(value, f"{name}[{index}]") for index, value in enumerate(values)]

    def pairs(self, values: dict, name: str) -> list:
        return [
            [self.node(key, f"a key of {name}"), self.node(value, f"{name}[{key!r}]")]
            for key, value in values.items()
        ]

    def keep(self, data: bytes) -> int:
        self.buffers.append(data)
        return len(data)

    def tensor(self, tensor: torch.Tensor) -> dict:
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # After numpy(), no storage can be resized.
        data = np.from_dlpack(flat.view(-1).view(torch.uint8)).tobytes() if flat.numel() else b""
        gradient = tensor.requires_grad and tensor.is_leaf
        dtype = str(flat.dtype).removeprefix("torch.")
        return {"tensor": [dtype, list(flat.shape), gradient, self.keep(data)]}


def decode(packed: bytes, types: Types | None = None) -> list:
    """Return the values: tensors on the CPU, an OrderedDict as a dict.

    Raises:
        ValueError: `encode` has not made these bytes.
    """
    try:
        (length,) = LENGTH.unpack_from(packed)
        reader = Reader(packed, LENGTH.size + length, types or {})
        values = reader.value(json.loads(packed[LENGTH.size : reader.at]))
        if not isinstance(values, list):
            raise ValueError("no list of values")
        if reader.at != len(packed):
            raise ValueError(f"{len(packed) - reader.at} bytes too many")
        return values
    except (
        *(ValueError, TypeError, KeyError, AttributeError),
        *(RecursionError, RuntimeError, OverflowError, SyntaxError, struct.error),
    ) as error:
        raise ValueError(f"a rank has sent bytes that are no result ({error})") from None


class Reader:
    """Makes values again, with the bytes behind the JSON, in order."""

    def __init__(self, packed: bytes, at: int, types: Types):
        self.packed, self.at = packed, at
        self.types = {kind.__name__: kind for kind in types}

    def take(self, size: int) -> bytes:
        if not isinstance(size, int) or not 0 <= size <= len(self.packed) - self.at:
            raise ValueError(f"{size} bytes are missing")
        self.at += size
        return self.packed[self.at - size : self.at]

    def value(self, node):
        if isinstance(node, list):
            return [self.value(one) for one in node]
        if not isinstance(node, dict):
            return node
        [(word, what)] = node.items()
        if word in SEQUENCES:
            return SEQUENCES[word](self.value(one) for one in what)
        match word:
            case "dict":
                return {self.value(key): self.value(value) for key, value in what}
            case "own":
                name, fields = what
                return self.types[name](**self.value({"dict": fields}))
            case "integer":
                return int(what, 16)
            case "complex":
                return complex(*what)
            case "bytes":
                return self.take(what)
            case "dtype":
                return dtype_named(what)
            case "device":
                return torch.device(what)
            case "tensor":
                return self.tensor(*what)
            case "array" | "number":
                return self.array(word, *what)
        raise ValueError(f"unknown kind {word!r}")

    def tensor(self, name: str, shape: list[int], gradient: bool, size: int) -> torch.Tensor:
        data, dtype = bytearray(self.take(size)), dtype_named(name)
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        if flat.is_quantized:  # PyTorch would crash: it lacks the scale
            raise ValueError("a quantized tensor")
        return flat.view(shape).requires_grad_(bool(gradient))

    def array(self, word: str, kind: str, shape: list[int], size: int):
        data = bytearray(self.take(size))
        array = np.frombuffer(data, np.dtype(kind)).reshape(shape)  # NumPy refuses objects here
        return array if word == "array" else array[()]


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype {name!r}")
    return dtype


def everyones(packed: bytes, group: dist.ProcessGroup) -> list[bytes]:
    """Return the packed bytes of each rank, in order. Every rank of the group calls this."""
    ranks = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(packed)]), group=group)
    own = torch.zeros(int(max(sizes)), dtype=torch.uint8)  # all_gather needs one size for all
    own[: len(packed)] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    rows = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(rows, own, group=group)
    return [row[: int(n)].numpy().tobytes() for row, n in zip(rows, sizes, strict=True)]


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
    raise TypeError(
        f"{name} is of type {kind_name(type(value))}, and results are kept as JSON: "
        "return numbers, words, lists, dicts or tensors"
    )


def write_json(path: str | os.PathLike, value: Any):
    """Write the whole file or nothing: a reader never sees half a file."""
    write_whole(Path(path), json.dumps(value).encode())


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
