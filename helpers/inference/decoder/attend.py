"""Attention of one new token per sequence: two products and a softmax.

N  pairs of a sequence and a key/value head    S  keys    d  width of a head
G  query heads per key/value head
"""

import torch


def attend_one(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute softmax(q kᵀ + bias) v, (N, G, d). The queries are already divided by √d.

    With one query there is no matrix of scores to avoid. Then plain products are faster than the
    fused kernel, which divides keys into tiles.

    Args:
        q: (N, G, d).
        k, v: (N, S, d); views of a longer cache are fine.
        bias: (N, 1, S), -inf for a key that is not seen; None: all are seen.
        out: (N, G, d), for the result.
    """
    k = k.transpose(1, 2)
    scores = torch.bmm(q, k) if bias is None else torch.baddbmm(bias, q, k)  # (N, G, S)
    return torch.bmm(torch.softmax(scores, -1), v, out=out)
