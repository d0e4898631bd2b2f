"""Count what autograd saves of a norm. See `helpers.models.activation_counts`."""

import torch


def saved_bytes(norm: str, width: int, dtype: torch.dtype) -> int:
    """Count the bytes per token that a norm saves, besides its result.

    Args:
        norm: "rms" or "layer".
        width: of the vectors that it normalises.
        dtype: of the model.
    """
    if norm == "layer":
        return (width + 2) * dtype.itemsize  # the input, its mean, its inverse deviation
    return (2 * width + 1) * max(4, dtype.itemsize)
