"""Serialize functions, arguments and results for the way between the notebook and its ranks.

Functions travel by value (cloudpickle), so functions, lambdas, closures and classes of a cell
arrive whole. The rank imports again whatever the notebook imported from a file. The bytes of large
tensors and arrays stay out of the pickle: `pack` writes them once into an anonymous file in memory,
and each receiver of its descriptor maps the file privately.

Caches, new types and compiled functions, which cloudpickle cannot send, travel as the parts that
made them. A value that the rank can import travels by its name.
"""

import functools
import io
import mmap
import os
import pickle
import sys
import types
import typing
from typing import Any, NamedTuple

import cloudpickle
import torch

from helpers.runtime.private import anonymous_file

INLINE = 1 << 16  # bytes; larger values travel through a file in memory
ALIGN = 64
OWN = ("__main__", "__mp_main__")  # a script's name, and its name in a process that it spawned
ORIGINAL = "_torchdynamo_orig_callable"  # torch.compile keeps the original function here
BACKEND = "_torchdynamo_orig_backend"


class CannotTravel(TypeError):
    """A value cannot be sent to, or back from, a rank. The message names it, with advice."""


def kind_name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


class Parcel(NamedTuple):
    """A packed value. `fd` is open in the process that packed it: `close` after sending."""

    pickled: bytes | None
    sizes: list[int]  # bytes of the pickle and of each buffer, in the file
    fd: int | None

    def close(self):
        if self.fd is not None:
            os.close(self.fd)


def pack(value: Any) -> Parcel:
    """Pack `value`.

    Raises:
        CannotTravel: a part of `value` has no meaning in another process.
    """
    buffers: list[pickle.PickleBuffer] = []

    def keep_small_in_the_pickle(buffer: pickle.PickleBuffer) -> bool:
        small = buffer.raw().nbytes <= INLINE
        if not small:
            buffers.append(buffer)
        return small

    if "__mp_main__" in sys.modules:  # a spawned process: its script has this name
        cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])
    stream = io.BytesIO()
    try:
        Packer(stream, keep_small_in_the_pickle).dump(value)
    except CannotTravel:
        raise
    except Exception as error:
        raise CannotTravel(f"{type(error).__name__}: {error}") from error
    parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    sizes = [part.nbytes for part in parts]
    if not buffers and sizes[0] <= INLINE:
        return Parcel(stream.getvalue(), sizes, None)
    parcel = Parcel(None, sizes, anonymous_file())
    try:
        for part, start in zip(parts, starts(sizes), strict=True):
            while part.nbytes:
                written = os.pwrite(parcel.fd, part, start)
                part, start = part[written:], start + written
    except BaseException:
        parcel.close()
        raise
    return parcel


def unpack(parcel: Parcel) -> Any:
    """Return the value; its large tensors are mapped privately, so no other process sees writes."""
    pickled, sizes, fd = parcel
    if fd is None:
        return pickle.loads(pickled)
    begins = starts(sizes)
    memory = memoryview(private_map(fd, begins[-1] + sizes[-1]))
    pickled, *buffers = (memory[b : b + n] for b, n in zip(begins, sizes, strict=True))
    return pickle.loads(pickled, buffers=buffers)


def starts(sizes: list[int]) -> list[int]:
    position, begins = 0, []
    for size in sizes:
        begins.append(position)
        position += -(-size // ALIGN) * ALIGN
    return begins


def private_map(fd: int, size: int) -> mmap.mmap:
    return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


class Packer(cloudpickle.Pickler):
    """cloudpickle, but the bytes of CPU tensors stay out of the pickle, each storage once."""

    def __init__(self, stream, buffer_callback):
        super().__init__(stream, protocol=5, buffer_callback=buffer_callback)
        self.storages: dict[tuple[int, int], Storage] = {}  # by address and bytes

    def reducer_override(self, value):
        if isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
            for name in ("stdin", "stdout", "stderr"):
                if value is getattr(sys, name):
                    return getattr, (sys, name)  # the rank has its own
            raise CannotTravel("an open file belongs to the process that opened it")
        if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
            return self.reduce_tensor(value)
        if (parts := reduce_by_parts(value)) is not NotImplemented:
            return parts
        return super().reducer_override(value)

    def reduce_tensor(self, tensor: torch.Tensor):
        """Send the data alone: on the CPU, without the autograd graph."""
        flat = tensor.detach().cpu().resolve_conj().resolve_neg()
        memory = flat.untyped_storage()
        key = (memory.data_ptr(), memory.nbytes())
        if key not in self.storages and memory.nbytes() > 4 * flat.nbytes + INLINE:
            flat = flat.clone()  # a small view of a large storage: send only the view
            memory = flat.untyped_storage()
            key = (memory.data_ptr(), memory.nbytes())
        storage = self.storages.setdefault(key, Storage(memory))
        place = (flat.storage_offset(), tuple(flat.shape), flat.stride())
        keep_grad = tensor.requires_grad and tensor.is_leaf
        return rebuild_tensor, (storage, flat.dtype, place, keep_grad)


class Storage:
    """The memory of tensors, pickled once even if several tensors share it."""

    def __init__(self, memory: torch.UntypedStorage):
        self.memory = memory

    def __reduce_ex__(self, protocol):
        data = torch.empty(0, dtype=torch.uint8, device="cpu").set_(self.memory).numpy()
        return rebuild_storage, (pickle.PickleBuffer(data),)


def rebuild_storage(data) -> torch.UntypedStorage:
    if not len(data):
        return torch.UntypedStorage(0, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


def rebuild_tensor(storage, dtype, place, requires_grad) -> torch.Tensor:
    # A notebook may have set another default device.
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(storage, *place).requires_grad_(requires_grad)


def reduce_by_parts(value):
    """Return `(function, arguments)` that make `value` again; NotImplemented for most values."""
    if isinstance(value, functools._lru_cache_wrapper):
        # Without its entries: those belong to this process.
        parts = make_cache, (value.cache_parameters(), value.__wrapped__)
    elif isinstance(value, typing.NewType):
        parts = make_new_type, (value.__name__, value.__supertype__, value.__module__)
    elif isinstance(value, types.FunctionType) and ORIGINAL in value.__dict__:
        parts = compile_again, (getattr(value, ORIGINAL), options_of(value))
    else:
        return NotImplemented
    return NotImplemented if importable(value) else parts


def importable(value) -> bool:
    """Can the rank import this value by its name?"""
    name = getattr(value, "__module__", None)
    if name in (None, *OWN, *cloudpickle.list_registry_pickle_by_value()):
        return False
    found = sys.modules.get(name)
    for part in getattr(value, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is value


def make_cache(parameters: dict, function):
    return functools.lru_cache(**parameters)(function)


def make_new_type(name: str, supertype, module: str):
    new = typing.NewType(name, supertype)
    new.__module__ = module
    return new


def compile_again(function, options: dict):
    return torch.compile(function, **options)


def options_of(compiled) -> dict:
    """Return the options of `torch.compile` that this PyTorch shows."""
    cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__ or (), strict=True))
    context = cells["self"].cell_contents if "self" in cells else None
    backend = getattr(context, "callback", None)
    while hasattr(backend, BACKEND):
        backend = getattr(backend, BACKEND)
    options = {
        "fullgraph": bool(getattr(context, "fullgraph", False)),
        "dynamic": getattr(context, "_dynamic", None),
    }
    return options if backend is None else {**options, "backend": backend}
