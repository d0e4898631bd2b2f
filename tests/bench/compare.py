"""Compare our code with a peer: blocks in turn, ratios of pairs, confidence intervals."""

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A peer's time over our time: the median over the pairs, and its interval."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self):
        return f"{short(self.median)}× ({short(self.low)} to {short(self.high)})"


def in_turn(
    contenders: Mapping[str, Callable[[], float | None]], rounds: int
) -> dict[str, list[float | None]]:
    """Measure every contender once per round, so that slow periods affect all contenders.

    Each round starts with another contender.

    Args:
        contenders: functions that do the work once and return its seconds; None for no end.
    """
    names = list(contenders)
    samples: dict[str, list[float | None]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(contenders[name]())
    return samples


def timed(call: Callable[[], object], times: int = 1, before=lambda: None) -> Callable[[], float]:
    """Return a function that makes some calls and returns the seconds of each.

    Args:
        before: is called first, outside the time; for ranks, a barrier.
    """

    def block() -> float:
        before()
        began = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - began) / times

    return block


def timed_on_gpu(call: Callable[[], object]) -> float:
    """Return the seconds of a call by the GPU's own clock."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    call()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3


def fio(file: Path, size: int, ways: Iterable[str], block: int = 2**24) -> float:
    """Seconds in which the program fio moves so many bytes in each way, past the page cache.

    By its own clock, and with a wait for the disk.

    Args:
        ways: of "read" and "write", one after the other.
    """
    seconds = 0.0
    for way in ways:
        options = f"--name=peer --filename={file} --rw={way} --size={size} --bs={block} --direct=1"
        options += " --ioengine=psync --end_fsync=1 --output-format=json"
        done = subprocess.run(["fio", *options.split()], check=True, capture_output=True)
        seconds += json.loads(done.stdout)["jobs"][0][way]["runtime"] / 1e3
    return seconds


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread in this block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def median(samples: Sequence[float | None]) -> float | None:
    """The median of the samples that ended; None if no sample ended."""
    ended = [s for s in samples if s is not None]
    return statistics.median(ended) if ended else None


def ratio(
    ours: Sequence[float | None], peer: Sequence[float | None], confidence: float = CONFIDENCE
) -> Ratio | None:
    """Compute the median of `peer[i] / ours[i]`, with a bootstrap interval (percentiles).

    Each pair comes from one round, so a slow period of the machine cancels. A pair is left out if
    one of the two did not end.

    Raises:
        ValueError: the numbers of rounds differ, or a time is not positive.
    """
    if len(ours) != len(peer):
        raise ValueError(f"ours has {len(ours)} rounds, but the peer has {len(peer)}")
    pairs = [(a, b) for a, b in zip(ours, peer, strict=True) if a is not None and b is not None]
    if any(a <= 0 or b <= 0 for a, b in pairs):
        raise ValueError("times must be positive")
    if not pairs:
        return None
    ratios = np.array([b / a for a, b in pairs])
    picks = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Ratio(float(np.median(ratios)), float(low), float(high), len(pairs))


def beside(ours: Sequence[float], peer: Sequence[float]) -> dict[str, float]:
    """Return our time over the peer's, as columns of a table's row: ratio, low and high."""
    share = ratio(peer, ours)
    return {"ratio": share.median, "low": share.low, "high": share.high}


def short(value: float) -> str:
    """Format with two digits: 0.12, 1.2, 12, 120."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """Format seconds: 8.1 ms, 54 ms, 1.31 s, 12 s."""
    if seconds is None:
        return "never"
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
