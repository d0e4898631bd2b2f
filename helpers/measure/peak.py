"""Measure this machine's peak rates: a large matrix product, and a large copy.

These are the best rates that PyTorch reaches here on favourable work. The peaks of the data sheet
are higher. Each rate is the median of a fixed number of calls, on one thread and on all.
"""

from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from helpers.measure.clock import current_gpu, time_of
from helpers.measure.draw import bars, table, text

COPY_BYTES = 128 * 2**20  # of one buffer: larger than the caches of most processors


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The result of `peak_of`.

    Attributes:
        device: "cpu" or "cuda…".
        flops: (dtype, threads) -> FLOP/s of a large matrix product. PyTorch's names of dtypes; CPU
            threads, 0 on other devices.
        bandwidth: threads -> bytes/s of a large copy: the sum of bytes read and bytes written.
        size: n of the product, (n, n) by (n, n).
        copied: bytes in one of the copy's two buffers.
    """

    device: str
    flops: dict[tuple[str, int], float]
    bandwidth: dict[int, float]
    size: int
    copied: int

    def _rows(self) -> dict[str, str]:
        rows = {
            f"matmul, {dtype}{_threads(count)}": f"{flops / 1e9:,.1f} GFLOP/s"
            for (dtype, count), flops in self.flops.items()
        }
        return rows | {
            f"copy{_threads(count)}": f"{moved / 1e9:,.1f} GB/s"
            for count, moved in self.bandwidth.items()
        }

    def __repr__(self):
        return text(self.device, self._rows())

    def _repr_html_(self):
        return table(self.device, self._rows())

    def plot(self):
        """Plot a bar per product. Returns a Picture."""
        values = {f"{d}{_threads(count)}": f / 1e9 for (d, count), f in self.flops.items()}
        return bars(f"matmul of {self.size} by {self.size}", values, "GFLOP/s")


def peak_of(
    device: str = "cpu",
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    threads: Iterable[int] | None = None,
    size: int = 1024,
    copied: int = COPY_BYTES,
    repeats: int = 5,
) -> Peak:
    """Measure matrix products of each dtype, and a copy, on one thread and on all.

    Args:
        device: "cpu" or "cuda…". Only on the CPU does the number of threads vary.
        dtypes: default float32 and float64; on a GPU also bfloat16. (On a CPU without bfloat16
            units, one product may need seconds.)
        threads: numbers of threads to measure; default 1 and PyTorch's current number.
        size: n; a product of two (n, n) matrices is 2 n³ FLOPs.
        copied: bytes in one buffer of the copy, at least 4.
    """
    cpu = torch.device(device).type == "cpu"
    if dtypes is None:
        dtypes = (torch.float32, torch.float64) + (() if cpu else (torch.bfloat16,))
    dtypes = tuple(dtypes)
    if not cpu:
        counts = [0]
    elif threads is None:
        counts = sorted({1, torch.get_num_threads()})
    else:
        counts = list(threads)
    flops, bandwidth = {}, {}
    for count in counts:
        with threads_of(count):
            for dtype in dtypes:
                name = str(dtype).removeprefix("torch.")
                flops[name, count] = matmul_rate(size, dtype, device, repeats=repeats)
            bandwidth[count] = copy_rate(copied, device, repeats=repeats)
    return Peak(device=device, flops=flops, bandwidth=bandwidth, size=size, copied=copied)


def matmul_rate(
    size: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    *,
    columns: int | None = None,
    repeats: int = 5,
    calls: int = 1,
) -> float:
    """Measure the FLOP/s of (size, size) by (size, columns): 2 · size² · columns FLOPs. The median.

    Args:
        columns: default `size`; 1 for the product of a matrix and a vector.
        calls: per repeat, for small sizes (see `time_of`).
    """
    columns = size if columns is None else columns
    left = torch.ones(size, size, dtype=dtype, device=device)
    right = torch.ones(size, columns, dtype=dtype, device=device)
    result = torch.empty(size, columns, dtype=dtype, device=device)
    with current_gpu(device):
        timing = time_of(
            lambda: torch.mm(left, right, out=result), repeats=repeats, warmup=1, calls=calls
        )
    return 2 * size**2 * columns / timing.seconds


def copy_rate(copied: int, device: str = "cpu", *, repeats: int = 5, calls: int = 1) -> float:
    """Measure the bytes/s of a copy: 2 · copied bytes, read and written. The median.

    A CPU may read memory before it overwrites it. As in McCalpin's STREAM, that does not count.

    Raises:
        ValueError: `copied` is less than one float32.
    """
    if copied < 4:
        raise ValueError(f"{copied=} must be at least the 4 bytes of one float32")
    source = torch.ones(copied // 4, device=device)
    target = torch.zeros_like(source)
    with current_gpu(device):
        timing = time_of(lambda: target.copy_(source), repeats=repeats, warmup=1, calls=calls)
    return 2 * (copied // 4) * 4 / timing.seconds


@contextmanager
def threads_of(count: int):
    """Use `count` PyTorch threads inside the block; 0 changes nothing."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _threads(count: int) -> str:
    return "" if count == 0 else f", {count} thread{'s' if count > 1 else ''}"
