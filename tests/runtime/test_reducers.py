"""Caches, new types and compiled functions of a notebook travel, and are what they were."""

import fnmatch
import functools
import typing

import pytest
import torch

from helpers.runtime.launch import launch
from helpers.runtime.payload import pack, unpack
from helpers.runtime.reducers import importable, reduce_by_parts, reduce_compiled

UserId = typing.NewType("UserId", int)


@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.lru_cache(maxsize=3, typed=True)
def square(x):
    return x * x


def double(x):
    return 2 * x


doubled = torch.compile(double, backend="eager", fullgraph=True)


def test_a_cached_function_that_calls_itself():
    def use(worker):
        value = fibonacci(30 + worker.rank)
        return value, fibonacci.cache_info().currsize

    assert list(launch(use)) == [(832040, 31), (1346269, 32)]


def test_a_cache_keeps_its_parameters_and_starts_empty():
    square(2)

    def use(worker):
        before = square.cache_info().currsize
        return [square(x) for x in (1, 2, 3, 4)], before, square.cache_parameters()

    values, before, parameters = launch(use, workers=1)[0]
    assert values == [1, 4, 9, 16]
    assert before == 0
    assert parameters == {"maxsize": 3, "typed": True}


def test_a_cached_method():
    class Table:
        @functools.lru_cache  # noqa: B019
        def row(self, k):
            return [k] * 3

    assert launch(lambda worker: Table().row(worker.rank + 5))[1] == [6, 6, 6]


def test_a_new_type():
    def use(worker, user: UserId) -> UserId:
        return UserId(user + 1), UserId.__name__, UserId.__supertype__ is int

    assert launch(use, workers=1, user=UserId(4))[0] == (5, "UserId", True)
    make, arguments = reduce_by_parts(UserId)
    again = make(*arguments)
    assert again is not UserId
    assert (again.__name__, again.__supertype__) == ("UserId", int)
    assert again.__module__ == UserId.__module__ != make.__module__


def test_a_compiled_function_is_compiled_again():
    def use(worker, x):
        return doubled(x), hasattr(doubled, "_torchdynamo_orig_callable")

    result, compiled = launch(use, workers=1, x=torch.ones(3))[0]
    assert torch.equal(result, torch.full((3,), 2.0))
    assert compiled


def test_a_compiled_function_keeps_its_backend_and_fullgraph():
    def backend(graph, inputs):
        return lambda *given: [10 * each for each in graph.forward(*given)]

    def breaks(x):
        print("a break in the graph")
        return x + 1

    for options, error in (({"fullgraph": True}, True), ({}, False)):
        parcel = pack(torch.compile(breaks, backend=backend, **options))
        again = unpack(parcel)
        parcel.close()
        if error:
            with pytest.raises(Exception, match=r"[Gg]raph"):
                again(torch.ones(2))
        else:
            assert torch.equal(again(torch.ones(2)), torch.full((2,), 20.0))


def test_what_can_be_imported_is_imported():
    cached = next(
        value for value in vars(fnmatch).values() if isinstance(value, functools._lru_cache_wrapper)
    )
    assert importable(cached)
    parcel = pack(cached)
    assert unpack(parcel) is cached
    parcel.close()
    assert not importable(fibonacci)
    namesake = functools.cache(double)  # a cell has redefined it; the module has the older one
    namesake.__module__, namesake.__qualname__ = "fnmatch", "fnmatch"
    assert not importable(namesake)


def test_dynamic_shapes_are_on_off_or_open_as_before():
    """Open: PyTorch compiles for one shape first, and for all after a second shape."""
    for dynamic in (None, True, False):
        compiled = torch.compile(double, backend="eager", dynamic=dynamic)
        _, (function, options) = reduce_compiled(compiled)
        assert function is double
        assert options["dynamic"] is dynamic
        assert options["fullgraph"] is False
