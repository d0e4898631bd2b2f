"""Rates are work over the median time, threads are restored, and every request has a result."""

import re
from types import SimpleNamespace

import pytest
import torch

from helpers.measure import peak
from helpers.measure.clock import Timing
from helpers.measure.peak import Peak, copy_rate, matmul_rate, peak_of, threads_of
from tests.cuda import Cuda


@pytest.fixture
def half_a_second(monkeypatch):
    """Make the clock report 0.5 s for each call. Returns the options that the clock got."""
    options = []

    def time_of(call, **given):
        call()
        options.append(given)
        return Timing("x", (0.5, 0.5, 9.0), (0.0,) * 3)

    monkeypatch.setattr(peak, "time_of", time_of)
    return options


def test_flops_over_seconds(half_a_second):
    assert matmul_rate(8) == 2 * 8**3 / 0.5
    assert half_a_second[-1] == {"repeats": 5, "warmup": 1, "calls": 1}
    peak_of(dtypes=(torch.float32,), threads=(1,), size=8, copied=64)
    assert [options["repeats"] for options in half_a_second] == [5, 5, 5]
    assert matmul_rate(8, torch.float64, columns=1, repeats=3, calls=4) == 2 * 8**2 / 0.5
    assert half_a_second[-1] == {"repeats": 3, "warmup": 1, "calls": 4}


def test_bytes_read_and_written_over_seconds(half_a_second):
    assert copy_rate(4096) == 2 * 4096 / 0.5
    assert half_a_second[-1] == {"repeats": 5, "warmup": 1, "calls": 1}
    assert copy_rate(4099) == 2 * 4096 / 0.5  # only whole float32 numbers
    copy_rate(4096, repeats=3, calls=4)
    assert half_a_second[-1] == {"repeats": 3, "warmup": 1, "calls": 4}


def test_each_request_is_passed_on(monkeypatch):
    asked = []
    for name in ("matmul_rate", "copy_rate"):
        monkeypatch.setattr(
            peak, name, lambda *given, name=name, **options: asked.append((name, given, options))
        )
    peak_of(dtypes=(torch.float64,), threads=(1,), size=8, copied=64, repeats=3)
    assert asked == [
        ("matmul_rate", (8, torch.float64, "cpu"), {"repeats": 3}),
        ("copy_rate", (64, "cpu"), {"repeats": 3}),
    ]


def test_what_is_measured_unless_you_choose(monkeypatch):
    """A GPU has bfloat16 units, and no threads to choose."""
    asked = {"cpu": [], "cuda": []}
    for name in ("matmul_rate", "copy_rate"):
        monkeypatch.setattr(peak, name, lambda *given, **_: asked[given[-1]].append(given) or 1.0)
    large = 128 * 2**20
    with threads_of(1):
        found = [peak_of(device) for device in asked]
    two = [(1024, torch.float32), (1024, torch.float64)]
    assert asked["cpu"] == [(*given, "cpu") for given in (*two, (large,))]
    on_gpu = (*two, (1024, torch.bfloat16), (large,))
    assert asked["cuda"] == [(*given, "cuda") for given in on_gpu]
    assert [list(one.bandwidth) for one in found] == [[1], [0]]
    assert {(one.size, one.copied) for one in found} == {(1024, large)}
    assert [one.device for one in found] == ["cpu", "cuda"]
    assert "copy, 1 thread " in repr(found[0])
    assert "thread" not in repr(found[1])


def test_a_rate_of_another_gpu_than_the_current_one_waits_for_that(monkeypatch):
    """Else the time would be that of the launches alone."""
    cuda, one = Cuda(monkeypatch), torch.ones(1)
    copied = SimpleNamespace(copy_=lambda _: cuda.work())
    fake = SimpleNamespace(
        ones=lambda *_, **__: one, empty=lambda *_, **__: one, zeros_like=lambda _: copied,
        mm=lambda *_, out: cuda.work(), float32=torch.float32,
    )  # fmt: skip
    monkeypatch.setattr(peak, "torch", fake)
    for rate in (matmul_rate, copy_rate):
        cuda.calls.clear()
        rate(8, device="cuda:1", repeats=1)
        names = ["enter", "work", "synchronize", "work", "synchronize", "leave"]
        assert cuda.calls == [(name, 1) for name in names]


def test_the_product_is_made_and_the_copy_too(monkeypatch):
    """The timed product really runs: its FLOPs are counted."""
    from helpers.measure.flops import flops_of

    counted = flops_of(lambda: matmul_rate(16, columns=4, repeats=2, calls=3))
    assert counted.total == (1 + 2 * 3) * 2 * 16**2 * 4  # including the warm-up
    targets = []
    monkeypatch.setattr(
        torch, "zeros_like", lambda t: targets.append(torch.empty_like(t)) or targets[-1]
    )
    copy_rate(64, repeats=1)
    assert targets[0].tolist() == [1.0] * 16


def test_every_request_has_a_result():
    found = peak_of(dtypes=(torch.float32, torch.float64), threads=(1, 2), size=32, copied=1024)
    assert set(found.flops) == {(d, t) for d in ("float32", "float64") for t in (1, 2)}
    assert set(found.bandwidth) == {1, 2}
    assert all(rate > 0 for rate in [*found.flops.values(), *found.bandwidth.values()])


def test_dtypes_may_be_read_once_only():
    found = peak_of(dtypes=iter([torch.float32]), threads=(1, 2), size=8, copied=64)
    assert set(found.flops) == {("float32", 1), ("float32", 2)}
    assert {d for d, _ in peak_of(threads=(1,), size=8, copied=64).flops} == {"float32", "float64"}


def test_threads_by_default_and_put_back():
    before = torch.get_num_threads()
    with threads_of(3):
        assert torch.get_num_threads() == 3
        assert set(peak_of(dtypes=(), copied=64).bandwidth) == {1, 3}
        with threads_of(0):  # changes nothing
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), threads_of(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


def test_each_count_is_in_force_when_it_is_measured(monkeypatch):
    monkeypatch.setattr(peak, "copy_rate", lambda *_, **__: torch.get_num_threads())
    assert peak_of(dtypes=(), threads=(2, 1, 3)).bandwidth == {2: 2, 1: 1, 3: 3}


def test_a_row_for_each_dtype_and_number_of_threads():
    found = Peak(
        device="cpu",
        flops={
            ("float32", 1): 4e9,
            ("float32", 2): 7e9,
            ("bfloat16", 1): 2e9,
            ("bfloat16", 2): 1e9,
        },
        bandwidth={1: 7e9, 2: 9e9, 4: 8e9},
        size=1,
        copied=4,
    )
    assert "matmul, float32, 2 threads" in repr(found)
    assert "7.0 GFLOP/s" in found._repr_html_()
    rows = dict(re.split(" {2,}", line.strip()) for line in repr(found).splitlines()[1:])
    assert rows["matmul, float32, 1 thread"] == "4.0 GFLOP/s"
    assert rows["copy, 4 threads"] == "8.0 GB/s"
    axes = found.plot().axes[0]
    assert [bar.get_width() for bar in axes.patches] == [4, 7, 2, 1]
    assert axes.get_yticklabels()[2].get_text() == "bfloat16, 1 thread"
    assert (axes.get_title(), axes.get_xlabel()) == ("matmul of 1 by 1", "GFLOP/s")


def test_too_little_to_copy():
    with pytest.raises(ValueError, match="at least the 4 bytes"):
        copy_rate(3)


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    found = peak_of("cuda", dtypes=(torch.bfloat16,), size=256, copied=2**20)
    assert set(found.flops) == {("bfloat16", 0)}
    assert set(found.bandwidth) == {0}
    assert "thread" not in repr(found)
