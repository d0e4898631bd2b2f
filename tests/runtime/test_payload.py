"""Values survive the journey; large data is not pickled."""

import fnmatch
import functools
import io
import os
import sys
import threading
import typing

import numpy as np
import pytest
import torch

from helpers.runtime.launch import launch
from helpers.runtime.payload import (
    INLINE,
    CannotTravel,
    importable,
    pack,
    reduce_by_parts,
    starts,
    unpack,
)

MEGABYTE = 1 << 20


def travel(value):
    parcel = pack(value)
    try:
        return unpack(parcel)
    finally:
        parcel.close()


def tensors():
    base = torch.arange(24.0).reshape(4, 6)
    yield "plain", base
    yield "large", torch.arange(300_000.0)
    yield "empty", torch.empty(0)
    yield "empty, of a shape", torch.empty(3, 0, 2)
    yield "no dims", torch.tensor(3.5)
    yield "transposed", base.t()
    yield "strided", base[::2, 1::2]
    yield "large, transposed", torch.arange(300_000.0).reshape(300, 1000).t()
    yield "expanded", torch.ones(1).expand(1000)
    yield "a row of something large", torch.arange(1_000_000.0)[10:14]
    yield "bf16", torch.randn(7).bfloat16()
    yield "half", torch.randn(7).half()
    yield "float8", torch.randn(8).to(torch.float8_e4m3fn)
    yield "bool", torch.tensor([True, False])
    yield "int8", torch.arange(-5, 5, dtype=torch.int8)
    yield "complex", torch.randn(5, dtype=torch.complex64)
    yield "conjugate", torch.randn(5, dtype=torch.complex64).conj()
    yield "negative view", torch.randn(5, dtype=torch.complex64).conj().imag


@pytest.mark.parametrize(
    ("name", "tensor"), list(tensors()), ids=lambda v: v if type(v) is str else ""
)
def test_tensors(name, tensor):
    back = travel(tensor)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert back.requires_grad == tensor.requires_grad
    same = (
        (back.view(torch.uint8), tensor.view(torch.uint8)) if name == "float8" else (back, tensor)
    )
    assert torch.equal(*same)


def test_a_leaf_keeps_requires_grad_and_a_result_loses_its_graph():
    leaf = torch.randn(3, requires_grad=True)
    assert travel(leaf).requires_grad
    back = travel(leaf * 2)
    assert not back.requires_grad
    assert torch.equal(back, leaf.detach() * 2)


def test_tensors_of_other_kinds_travel_in_pytorch_s_own_way():
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(travel(sparse).to_dense(), sparse.to_dense())
    quantized = torch.quantize_per_tensor(torch.arange(3.0), 0.5, 0, torch.quint8)
    assert torch.equal(travel(quantized).dequantize(), torch.arange(3.0))


def test_parameters_and_modules():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    back = travel(model)
    assert isinstance(back[0].weight, torch.nn.Parameter)
    assert list(back.state_dict()) == list(model.state_dict())
    for ours, theirs in zip(model.state_dict().values(), back.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = travel(optimizer.state_dict())
    assert torch.equal(state["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


@pytest.mark.parametrize("numel", [10, 100_000])
def test_what_shares_memory_shares_it_again(numel):
    tensor = torch.zeros(numel)
    twice = travel({"whole": tensor, "again": tensor, "part": tensor[2:6]})
    assert twice["whole"] is twice["again"]
    twice["whole"][3] = 7
    assert twice["part"][1] == 7
    tied = torch.nn.Linear(numel, 1, bias=False)
    other = torch.nn.Linear(numel, 1, bias=False)
    other.weight = tied.weight
    tied, other = travel((tied, other))
    assert tied.weight is other.weight


def test_a_copy_is_private():
    for tensor in (torch.zeros(4), torch.zeros(MEGABYTE)):
        parcel = pack(tensor)
        first, second = unpack(parcel), unpack(parcel)
        first.fill_(1)
        assert tensor.sum() == 0
        assert second.sum() == 0
        parcel.close()


def test_large_data_is_not_pickled():
    value = {"w": torch.ones(25 * MEGABYTE), "x": np.ones((3, MEGABYTE)), "y": bytearray(4096)}
    parcel = pack(value)  # 100 MiB and 24 MiB
    pickled, *buffers = parcel.sizes
    assert parcel.pickled is None
    assert pickled < 10_000
    assert sorted(buffers) == [24 * MEGABYTE, 100 * MEGABYTE]
    back = unpack(parcel)
    parcel.close()
    assert torch.equal(back["w"], value["w"])
    assert np.array_equal(back["x"], value["x"])


def test_a_small_view_does_not_take_all_of_its_memory_along():
    parcel = pack(torch.zeros(100 * MEGABYTE)[5:9])
    assert sum(parcel.sizes) < INLINE
    parcel = pack(torch.zeros(10 * MEGABYTE)[:MEGABYTE])
    parcel.close()
    assert sum(parcel.sizes) < 5 * MEGABYTE  # 4 of it are the view


def test_a_large_pickle_needs_no_room_in_the_socket():
    parcel = pack("x" * MEGABYTE)
    assert parcel.fd is not None
    assert unpack(parcel) == "x" * MEGABYTE
    parcel.close()


def test_a_full_memory_leaves_no_descriptor_open(monkeypatch):
    def full(*_):
        raise OSError("no space left")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no space left"):
        pack(torch.zeros(100_000))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_written_in_slices_is_whole(monkeypatch):
    """A system writes 2 GiB at most in one call, and may always write less than it was given."""
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, part, at: write(fd, part[:70_000], at))
    tensor = torch.arange(100_000.0)
    assert torch.equal(travel({"x": tensor})["x"], tensor)


def test_packing_leaves_no_descriptor_open():
    before = len(os.listdir("/proc/self/fd"))
    for value in (torch.zeros(MEGABYTE), "x" * MEGABYTE, 3):
        travel(value)
    with pytest.raises(CannotTravel):
        pack([torch.zeros(MEGABYTE), threading.Lock()])
    assert len(os.listdir("/proc/self/fd")) == before


def test_numpy_scalars_and_read_only_arrays():
    array = np.arange(100_000)
    array.flags.writeable = False
    assert travel(np.float32(2.5)) == np.float32(2.5)
    assert np.array_equal(travel(array), array)


@pytest.mark.parametrize("size", [3, 100_000])
def test_another_default_device(size):
    """A notebook that builds its models on `meta`, or on a GPU, by default."""
    tensor = torch.arange(float(size))
    with torch.device("meta"):
        back = travel({"x": tensor, "empty": torch.empty(0, device="cpu")})
    assert back["x"].device.type == "cpu"
    assert torch.equal(back["x"], tensor)
    torch.set_default_device("meta")
    try:
        assert torch.equal(travel(tensor), tensor)
        runs = launch(lambda worker, x: x + worker.rank, x=tensor)
    finally:
        torch.set_default_device(None)  # else every call goes through a mode, in all later tests
    assert torch.equal(runs[1], tensor + 1)


def test_the_streams_of_a_notebook_are_those_of_the_rank_and_other_files_stay_here(
    tmp_path, monkeypatch
):
    for name in ("stdin", "stdout", "stderr"):
        with (tmp_path / name).open("w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, name, stream)
            assert travel({"file": stream})["file"] is stream
    for kind, content in ((io.BytesIO, b"abc"), (io.StringIO, "abc")):
        assert travel(kind(content)).getvalue() == content
    with (tmp_path / "file").open("w") as file, pytest.raises(CannotTravel, match="an open file"):
        pack([file])


def test_what_python_cannot_pack_is_refused_in_its_own_words():
    with pytest.raises(CannotTravel, match=r"^TypeError: cannot pickle '_thread.lock' object"):
        pack({"lock": threading.Lock()})


@pytest.mark.parametrize("size", [INLINE - 1, INLINE, INLINE + 1])
def test_only_what_is_larger_than_a_message_goes_into_a_file(size):
    """Several parts: each begins where it is looked for."""
    parts = [np.frombuffer(bytes([n]) * (size + n), np.uint8) for n in range(3)]
    parcel = pack(parts)
    assert len(parcel.sizes) == 1 + sum(size + n > INLINE for n in range(3))
    assert starts([1, 64, 65, 200]) == [0, 64, 128, 256]
    back = unpack(parcel)
    parcel.close()
    assert all(map(np.array_equal, parts, back))
    small = pack(b"")
    assert (small.fd, unpack(small)) == (None, b"")
    small.close()  # there is nothing to close


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


def test_a_new_type():
    def use(worker, user: UserId) -> UserId:
        return UserId(user + 1), UserId.__name__, UserId.__supertype__ is int

    assert launch(use, workers=1, user=UserId(4))[0] == (5, "UserId", True)
    make, arguments = reduce_by_parts(UserId)
    again = make(*arguments)
    assert again is not UserId
    assert (again.__name__, again.__supertype__) == ("UserId", int)
    assert again.__module__ == UserId.__module__ != make.__module__


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
        _, (function, options) = reduce_by_parts(compiled)
        assert function is double
        assert options["dynamic"] is dynamic
        assert options["fullgraph"] is False
