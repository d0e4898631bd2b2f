"""Measure this machine's peak rates: a large matrix product, and a large copy.

These are the best rates that PyTorch reaches here on favourable work. The peaks of the data sheet
are higher. Each rate is the median of a fixed number of calls.
"""

from contextlib import contextmanager

import torch

from helpers.measure.clock import current_gpu, time_of


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
