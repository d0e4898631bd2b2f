"""Combine rows of numbers block by block, so that partial results stay in the cache."""

from collections.abc import Callable, Sequence

import torch

BLOCK = 1 << 19  # bytes to combine at a time


def in_blocks(row: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the row as views of at most `BLOCK` bytes."""
    step = max(1, BLOCK // row.element_size())
    return (row,) if row.numel() <= step else row.split(step)


def combined(
    combine: Callable,
    sources: Sequence[Sequence[torch.Tensor]],
    targets: Sequence[Sequence[torch.Tensor]],
):
    """Combine `sources` in their order, and write the result to every target.

    A target may also be a source.

    Args:
        combine: a function of two tensors, with `out=`.
        sources, targets: rows of equal length, each as returned by `in_blocks`.
    """
    partial = torch.empty_like(sources[0][0]) if len(sources) > 2 else None
    for (so_far, *blocks), (result, *more) in zip(
        zip(*sources, strict=True), zip(*targets, strict=True), strict=True
    ):
        for block in blocks[:-1]:
            so_far = combine(so_far, block, out=partial[: block.numel()])
        # Write to a target only at the end: until then it may be a source.
        if blocks:
            combine(so_far, blocks[-1], out=result)
        elif result.data_ptr() != so_far.data_ptr():
            result.copy_(so_far)
        for target in more:
            target.copy_(result)
