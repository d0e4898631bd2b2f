"""Products of sorted rows with one matrix for each expert.

R  rows, sorted by expert        E  experts        I, O  inputs and outputs of a matrix
"""

import torch
from torch.nn import functional


def loop(rows: torch.Tensor, counts: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply each expert's rows by its matrix: (R, I) and (E, O, I) to (R, O), one by one.

    An expert without rows takes part, with an empty product, so that its gradient is zero.

    Args:
        counts: (E,) int64, the rows of each expert, in order; their sum is R.
    """
    pairs = zip(rows.split(counts.tolist()), weight.unbind(), strict=True)
    return torch.cat([functional.linear(own, matrix) for own, matrix in pairs])


def grouped(rows: torch.Tensor, counts: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As `loop`, in one call of `torch.nn.functional.grouped_mm`; not in float64."""
    ends = counts.cumsum(0).to(torch.int32)
    return functional.grouped_mm(rows, weight.transpose(-2, -1), offs=ends)


PRODUCTS = {"loop": loop, "grouped": grouped}
