"""Rates are work over the median time, and threads are restored."""

from types import SimpleNamespace

import pytest
import torch

from helpers.measure import peak
from helpers.measure.clock import Timing
from helpers.measure.peak import copy_rate, matmul_rate, threads_of
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
    assert matmul_rate(8, torch.float64, columns=1, repeats=3, calls=4) == 2 * 8**2 / 0.5
    assert half_a_second[-1] == {"repeats": 3, "warmup": 1, "calls": 4}


def test_bytes_read_and_written_over_seconds(half_a_second):
    assert copy_rate(4096) == 2 * 4096 / 0.5
    assert half_a_second[-1] == {"repeats": 5, "warmup": 1, "calls": 1}
    assert copy_rate(4099) == 2 * 4096 / 0.5  # only whole float32 numbers
    copy_rate(4096, repeats=3, calls=4)
    assert half_a_second[-1] == {"repeats": 3, "warmup": 1, "calls": 4}


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


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with threads_of(3):
        assert torch.get_num_threads() == 3
        with threads_of(0):  # changes nothing
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), threads_of(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


def test_too_little_to_copy():
    with pytest.raises(ValueError, match="at least the 4 bytes"):
        copy_rate(3)


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    assert matmul_rate(256, torch.bfloat16, "cuda") > 0 < copy_rate(2**20, "cuda")
