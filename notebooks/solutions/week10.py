"""Solutions of week 10: scans, and state space models."""

import torch
import torch.distributed as dist


def combine(earlier, later):
    """Insert one step into the other: a2 (a1 h + b1) + b2."""
    (a1, b1), (a2, b2) = earlier, later
    return a2 * a1, a2 * b1 + b2


def scan_over_ranks(worker, a, b):
    """Scan from zero, get the state before the part, hand on the state after it, mend."""
    h, decay = torch.empty_like(b), torch.empty_like(a)
    state, product = b.new_zeros(b.shape[1]), b.new_ones(b.shape[1])
    for t in range(len(b)):
        state, product = a[t] * state + b[t], a[t] * product
        h[t], decay[t] = state, product
    before = torch.zeros_like(state)
    if worker.rank > 0:
        dist.recv(before, worker.rank - 1)
    if worker.rank < worker.world_size - 1:
        dist.send(product * before + state, worker.rank + 1)
    return h + decay * before
