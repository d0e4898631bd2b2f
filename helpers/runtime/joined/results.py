"""Encode a rank's result as JSON and the bytes of tensors, so that reading it runs no code.

Results travel between ranks that a launcher started. Other processes may reach these sockets, and
reading a pickle runs its writer's code. So a result is plain data here.
"""

import json
import struct

import numpy as np
import torch
import torch.distributed as dist

from helpers.runtime.payload import CannotTravel

LENGTH = struct.Struct("<Q")  # bytes of the JSON; the bytes of tensors follow
LARGEST = 10_000  # bits of a number in decimal
PLAIN = (type(None), bool, int, float, str)
SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}
KINDS = "biufcSUmM"  # NumPy's numbers, words and times
ADVICE = (
    "Under a launcher, return numbers, words, bytes, lists, tuples, sets, dicts, tensors or "
    "arrays: model.state_dict(), dataclasses.asdict(…), frame.to_dict('list')."
)


def encode(answer: tuple, name: str = "result") -> bytes:
    """Pack an answer into one string of bytes, for `decode`.

    Tensors that share memory arrive apart, and no autograd graph arrives.

    Args:
        answer: the function's result, and the rows that it logged.
        name: the result as the reader would write it, for the error.

    Raises:
        CannotTravel: a part is no plain data; names the part, and what to return instead.
    """
    buffers: list[bytes] = []
    try:
        value, records = answer
        nodes = [node(value, name, buffers), node(records, "the log", buffers)]
        text = json.dumps(nodes).encode()
    except RecursionError:
        raise CannotTravel(f"`{name}` is nested too deeply, or contains itself") from None
    return b"".join([LENGTH.pack(len(text)), text, *buffers])


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


def node(value, name: str, buffers: list[bytes]):
    """Return `value` in JSON's types; its bytes go to `buffers`."""
    kind = type(value)
    if kind is int and value.bit_length() > LARGEST:  # Python reads back no longer decimals
        return {"integer": hex(value)}
    if kind in PLAIN:
        return value
    if kind is list:
        return items(value, name, buffers)
    if kind is dict:
        return {"dict": pairs(value, name, buffers)}
    for word, sequence in SEQUENCES.items():
        if kind is sequence:
            return {word: items(value, name, buffers)}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": keep(value, buffers)}
    if kind in (torch.dtype, torch.device):
        return {kind.__name__: str(value).removeprefix("torch.")}
    if kind.__name__ == "OrderedDict" and isinstance(value, dict):  # a state_dict
        return {"dict": pairs(value, name, buffers)}
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized:
        return tensor_node(value, buffers)
    if kind is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value, order="C")
        if array.dtype.kind in KINDS:
            word = "array" if kind is np.ndarray else "number"
            return {word: [array.dtype.str, array.shape, keep(array.tobytes(), buffers)]}
    full = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    raise CannotTravel(f"`{name}` is of type {full} and cannot travel to the other ranks. {ADVICE}")


def items(values, name: str, buffers: list[bytes]) -> list:
    return [node(value, f"{name}[{index}]", buffers) for index, value in enumerate(values)]


def pairs(values: dict, name: str, buffers: list[bytes]) -> list:
    return [
        [node(key, f"a key of {name}", buffers), node(value, f"{name}[{key!r}]", buffers)]
        for key, value in values.items()
    ]


def keep(data: bytes, buffers: list[bytes]) -> int:
    buffers.append(data)
    return len(data)


def tensor_node(tensor: torch.Tensor, buffers: list[bytes]) -> dict:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = flat.view(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    gradient = tensor.requires_grad and tensor.is_leaf
    dtype = str(flat.dtype).removeprefix("torch.")
    return {"tensor": [dtype, list(flat.shape), gradient, keep(data, buffers)]}


def decode(packed: bytes) -> list:
    """Return the result and the rows: tensors on the CPU, an OrderedDict as a dict.

    Raises:
        ValueError: these bytes are no answer.
    """
    try:
        (length,) = LENGTH.unpack_from(packed)
        text = packed[LENGTH.size : LENGTH.size + length]
        rest = Bytes(packed, LENGTH.size + length)
        value, records = made(json.loads(text), rest)
        if rest.at != len(packed):
            raise ValueError(f"{len(packed) - rest.at} bytes too many")
        return [value, records]
    except (ValueError, TypeError, KeyError, RecursionError, RuntimeError, struct.error) as error:
        raise ValueError(f"a rank has sent bytes that are no result ({error})") from None


class Bytes:
    """Read the bytes behind the JSON, in order."""

    def __init__(self, packed: bytes, at: int):
        self.packed, self.at = packed, at

    def take(self, size: int) -> bytes:
        if not isinstance(size, int) or not 0 <= size <= len(self.packed) - self.at:
            raise ValueError(f"{size} bytes are missing")
        self.at += size
        return self.packed[self.at - size : self.at]


def made(node, rest: Bytes):
    if isinstance(node, list):
        return [made(one, rest) for one in node]
    if not isinstance(node, dict):
        return node
    [(word, what)] = node.items()
    if word in SEQUENCES:
        return SEQUENCES[word](made(one, rest) for one in what)
    if word == "dict":
        return {made(key, rest): made(value, rest) for key, value in what}
    if word == "integer":
        return int(what, 16)
    if word == "complex":
        return complex(*what)
    if word == "bytes":
        return rest.take(what)
    if word == "dtype":
        return dtype_named(what)
    if word == "device":
        return torch.device(what)
    if word == "tensor":
        return made_tensor(*what, rest)
    if word in ("array", "number"):
        return made_array(word, *what, rest)
    raise ValueError(f"unknown kind {word!r}")


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype {name!r}")
    return dtype


def made_tensor(name: str, shape: list[int], gradient: bool, size: int, rest: Bytes):
    data, dtype = bytearray(rest.take(size)), dtype_named(name)
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.view(shape).requires_grad_(bool(gradient))


def made_array(word: str, kind: str, shape: list[int], size: int, rest: Bytes):
    data = bytearray(rest.take(size))
    array = np.frombuffer(data, np.dtype(kind)).reshape(shape)  # NumPy refuses objects here
    return array if word == "array" else array[()]
