"""The linear recurrence in chunks: as parallel as there are chunks, with little extra work.

B  sequences      L  length      Q  length of a chunk      K  chunks, ⌈L/Q⌉      …  any other dims

1. Every chunk scans its own inputs from a zero state, and multiplies its decays. All chunks work at
   the same time: Q steps.
2. The states at the ends of the chunks go from chunk to chunk: K steps.
3. Every chunk adds what the state before it adds to each of its states: one step.

The sequence over ranks has the same three parts, and so has Mamba-2's scan.
"""

from functools import partial

import torch

from helpers.models.scan.recurrence import scan_by


def scan(
    a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor | None = None, chunk: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute h_t = a_t h_(t-1) + b_t for all t, in chunks. See `recurrence.scan`.

    Args:
        chunk: Q. It need not divide L.
    """
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}: a chunk has at least one token")
    return scan_by(partial(states, chunk=chunk), a, b, h0)


def states(a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor, chunk: int) -> torch.Tensor:
    """The three parts: all states (B, L, …) from a, b (B, L, …) and h0 (B, …)."""
    length = b.shape[1]
    chunk = min(chunk, length)
    a, b = in_chunks(a, chunk), in_chunks(b, chunk)  # (B, K, Q, …)
    decay, h = own(a, b)
    before = handed_on(decay[:, :, -1], h[:, :, -1], h0)  # (B, K, …)
    h.addcmul_(decay, before.unsqueeze(2))
    return h.flatten(1, 2)[:, :length]


def in_chunks(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """Cut (B, L, …) into (B, K, Q, …). The last is filled up with zeros, which nobody reads."""
    missing = -x.shape[1] % chunk
    if missing:
        x = torch.cat((x, x.new_zeros(x.shape[0], missing, *x.shape[2:])), 1)
    return x.unflatten(1, (-1, chunk))


def own(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scan every chunk from a zero state: its decays so far and its states, (B, K, Q, …) each."""
    decay, h = a.clone(), b.clone()
    for t in range(1, a.shape[2]):
        decay[:, :, t].mul_(decay[:, :, t - 1])
        h[:, :, t].addcmul_(a[:, :, t], h[:, :, t - 1])
    return decay, h


def handed_on(decay: torch.Tensor, end: torch.Tensor, h0: torch.Tensor) -> torch.Tensor:
    """Return the state before each chunk (B, K, …), from each chunk's decay and own last state."""
    before = torch.empty_like(end)
    before[:, 0] = h0
    for k in range(1, end.shape[1]):
        torch.addcmul(end[:, k - 1], decay[:, k - 1], before[:, k - 1], out=before[:, k])
    return before
