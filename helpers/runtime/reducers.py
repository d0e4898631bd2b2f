"""Send values of a notebook that cloudpickle cannot send: caches, new types, compiled functions.

Each value travels as the parts that made it, and the rank makes it again. A value that the rank can
import travels by its name.
"""

import functools
import sys
import types
import typing

import torch


def reduce_by_parts(value):
    """Return `(function, arguments)` that make `value` again; NotImplemented for most values."""
    if isinstance(value, functools._lru_cache_wrapper):
        make = reduce_cache
    elif isinstance(value, typing.NewType):
        make = reduce_new_type
    elif isinstance(value, types.FunctionType) and ORIGINAL in value.__dict__:
        make = reduce_compiled
    else:
        return NotImplemented
    return NotImplemented if importable(value) else make(value)


OWN = ("__main__", "__mp_main__")  # a script's name, and its name in a process that it spawned


def importable(value) -> bool:
    """Can the rank import this value by its name?"""
    import cloudpickle

    name = getattr(value, "__module__", None)
    if name in (None, *OWN, *cloudpickle.list_registry_pickle_by_value()):
        return False
    found = sys.modules.get(name)
    for part in getattr(value, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is value


def reduce_cache(cached):
    """Send a cached function without its entries: those belong to this process."""
    return make_cache, (cached.cache_parameters(), cached.__wrapped__)


def make_cache(parameters: dict, function):
    return functools.lru_cache(**parameters)(function)


def reduce_new_type(new: typing.NewType):
    return make_new_type, (new.__name__, new.__supertype__, new.__module__)


def make_new_type(name: str, supertype, module: str):
    new = typing.NewType(name, supertype)
    new.__module__ = module
    return new


ORIGINAL = "_torchdynamo_orig_callable"  # torch.compile keeps the original function here
BACKEND = "_torchdynamo_orig_backend"


def reduce_compiled(compiled):
    """Have the rank compile the function anew, with the options that this PyTorch shows."""
    cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__ or (), strict=True))
    context = cells["self"].cell_contents if "self" in cells else None
    backend = getattr(context, "callback", None)
    while hasattr(backend, BACKEND):
        backend = getattr(backend, BACKEND)
    options = {
        "fullgraph": bool(getattr(context, "fullgraph", False)),
        "dynamic": getattr(context, "_dynamic", None),
    }
    if backend is not None:
        options["backend"] = backend
    return compile_again, (getattr(compiled, ORIGINAL), options)


def compile_again(function, options: dict):
    return torch.compile(function, **options)
