"""Times are medians of a fixed number of calls. Waiting is wall time but not CPU time."""

import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.measure import clock
from helpers.measure.clock import Timing, time_of
from tests.cuda import Cuda


def test_the_number_of_calls_is_fixed():
    calls = []
    timing = time_of(lambda: calls.append(1), repeats=4, warmup=3, calls=5)
    assert len(calls) == 3 + 4 * 5
    assert len(timing.wall) == len(timing.cpu) == 4
    del calls[:]
    timing = time_of(lambda: calls.append(1))  # 7 repeats of one call, after 2
    assert (len(calls), len(timing.wall)) == (2 + 7, 7)


def test_sleep_is_wall_time_only():
    timing = time_of(lambda: time.sleep(0.02), repeats=3, warmup=0)
    assert timing.seconds >= 0.02
    assert timing.cpu_seconds < 0.01  # sleeping needs no CPU time


def test_work_is_cpu_time_too():
    def work():
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass

    timing = time_of(work, repeats=1, warmup=0)
    assert timing.cpu_seconds >= 0.02
    assert timing.seconds >= 0.019  # one thread: wall time >= CPU time, but for clock resolution


def test_a_time_is_divided_by_its_calls(monkeypatch):
    clocks = SimpleNamespace(
        perf_counter=iter([10.0, 18.0, 20.0, 32.0]).__next__,
        process_time=iter([1.0, 3.0, 4.0, 8.0]).__next__,
    )
    monkeypatch.setattr("helpers.measure.clock.time", clocks)
    timing = time_of(lambda: None, repeats=2, warmup=0, calls=4)
    assert timing.wall == (2.0, 3.0)
    assert timing.cpu == (0.5, 1.0)


def test_queued_work_is_waited_for_before_and_after(monkeypatch):
    """A GPU's work is neither counted for the call before it, nor left out."""
    cuda = Cuda(monkeypatch)
    clocks = SimpleNamespace(
        perf_counter=lambda: cuda.note("clock") or 0.0, process_time=lambda: 0.0
    )
    monkeypatch.setattr("helpers.measure.clock.time", clocks)
    time_of(cuda.work, repeats=2, warmup=1, calls=2)
    repeat = ["synchronize", "clock", "work", "work", "synchronize", "clock"]
    assert [name for name, _ in cuda.calls] == ["work", *repeat, *repeat]


def test_a_timing_has_the_name_of_its_function():
    def product():
        pass

    assert time_of(product, repeats=1).name == "product"
    assert time_of(product, repeats=1, name="mm").name == "mm"
    assert time_of(partial(product), repeats=1).name == "call"  # it has no name of its own


def test_medians_and_quartiles():
    timing = Timing("x", (1.0, 2.0, 3.0, 4.0, 100.0), (5.0, 1.0, 2.0, 3.0, 4.0))
    assert (timing.seconds, timing.cpu_seconds) == (3.0, 3.0)
    assert timing.spread == (2.0, 4.0)
    assert Timing("x", (1.0,), (1.0,)).spread == (1.0, 1.0)


@pytest.mark.parametrize("counts", [{"repeats": 0}, {"calls": 0}, {"warmup": -1}])
def test_invalid_counts(counts):
    with pytest.raises(ValueError, match="at least"):
        time_of(lambda: None, **counts)


def test_it_draws_itself():
    timing = Timing("a < b", (2e-3, 4e-3, 3e-3), (1e-6, 1e-6, 1e-6))
    assert "3 ms" in repr(timing)
    assert "1 µs" in repr(timing)
    assert "2.5 ms … 3.5 ms" in repr(timing)
    assert "a &lt; b" in timing._repr_html_()
    assert len(timing.plot().axes[0].lines) == 4
    skewed = Timing("x", (1e-3, 2e-3, 9e-3), (1e-3, 1e-3, 4e-3))
    assert [line.get_ydata()[0] for line in skewed.plot().axes[0].lines] == [1.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize("gpu", [0, 2])
def test_moments_on_a_gpu_are_events_in_its_queue(monkeypatch, gpu):
    """The CPU's clock stands still, the GPU works for 2 seconds: `mark` waits for nothing.

    The GPU is the one of the device, also if it is not the current one.
    """
    cuda = Cuda(monkeypatch)
    monkeypatch.setattr(clock.time, "perf_counter", lambda: 1000.0)
    moments = clock.Moments(torch.device("cuda", gpu))
    start = moments.mark()
    cuda.work(2, gpu)
    end = moments.mark()
    assert cuda.calls == [(name, gpu) for name in ("record", "wait", "record", "work", "record")]
    assert (moments.seconds(start), moments.seconds(end)) == (1000.0, 1002.0)


def test_moments_on_the_cpu_are_its_clock(monkeypatch):
    moments = clock.Moments(torch.device("cpu"))
    monkeypatch.setattr(clock.time, "perf_counter", lambda: 7.5)
    assert moments.seconds(moments.mark()) == 7.5
