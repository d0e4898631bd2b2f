"""Send what a notebook defines and cloudpickle cannot: caches, new types, compiled functions.

Each is taken apart into what it was made from, and made again on the rank. What can be imported
there is left to be imported.
"""

import functools
import sys
import types
import typing

import torch


def reduce_by_parts(value):
    """`(function, arguments)` that make `value` again; NotImplemented for most values."""
    if isinstance(value, functools._lru_cache_wrapper):
        make = reduce_cache
    elif isinstance(value, typing.NewType):
        make = reduce_new_type
    elif isinstance(value, types.FunctionType) and ORIGINAL in value.__dict__:
        make = reduce_compiled
    else:
        return NotImplemented
    return NotImplemented if importable(value) else make(value)


OWN = ("__main__", "__mp_main__")  # a script's, and that of a process that it has spawned


def importable(value) -> bool:
    """Is it to be found by its name, in a module that the rank has too?"""
    import cloudpickle

    name = getattr(value, "__module__", None)
    if name in (None, *OWN, *cloudpickle.list_registry_pickle_by_value()):
        return False
    found = sys.modules.get(name)
    for part in getattr(value, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is value


def reduce_cache(cached):
    """Without its entries: they are this process's."""
    return make_cache, (cached.cache_parameters(), cached.__wrapped__)


def make_cache(parameters: dict, function):
    return functools.lru_cache(**parameters)(function)


def reduce_new_type(new: typing.NewType):
    return make_new_type, (new.__name__, new.__supertype__, new.__module__)


def make_new_type(name: str, supertype, module: str):
    new = typing.NewType(name, supertype)
    new.__module__ = module
    return new


ORIGINAL = "_torchdynamo_orig_callable"  # where torch.compile keeps what it was given
BACKEND = "_torchdynamo_orig_backend"


def reduce_compiled(compiled):
    """It is compiled anew on the rank. Its options are read where this torch shows them."""
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
