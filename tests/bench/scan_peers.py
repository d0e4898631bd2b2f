"""The usual teaching implementations of both scans, in plain PyTorch: what ours are timed beside.

`parallel` is a scan of logarithmic depth on whole tensors, in place, with its own backward. `dual`
is Mamba-2's scan in chunks, as four einsums with all masks and states kept by autograd.

B  sequences   L  length   D  channels   N  state   H  heads   P  width of a head   Q  of a chunk

Sources: Blelloch 1990, CMU-CS-90-190, section 1.2; Dao and Gu 2024, arXiv:2405.21060, section 6.
"""

import torch
from torch.nn import functional


def parallel(x, delta, A, B, C):
    """The selective scan: all states (B, L, D, N) at once, then y (B, L, D)."""
    decay = torch.exp(delta.unsqueeze(-1) * A)
    h = InPlace.apply(decay, (delta * x).unsqueeze(-1) * B.unsqueeze(2))
    return (h @ C.unsqueeze(-1)).squeeze(-1)


class InPlace(torch.autograd.Function):
    """h_t = a_t h_(t-1) + b_t on (B, L, D, N), in 2 log2 L passes over strided slices."""

    @staticmethod
    def forward(ctx, a, b):
        length = a.shape[1]
        h = padded(b)
        sweep(padded(a), h)
        ctx.save_for_backward(a, h[:, :length])
        return h[:, :length]

    @staticmethod
    def backward(ctx, gradient):
        a, h = ctx.saved_tensors
        length = a.shape[1]
        later = torch.cat([torch.zeros_like(a[:, :1]), a[:, 1:].flip(1)], 1)
        total = padded(gradient.flip(1))
        sweep(padded(later), total)
        total = total[:, :length].flip(1)
        da = torch.zeros_like(a)
        torch.mul(total[:, 1:], h[:, :-1], out=da[:, 1:])
        return da, total


def padded(x):
    """A copy whose length is the next power of two."""
    missing = (1 << (x.shape[1] - 1).bit_length()) - x.shape[1]
    return functional.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x.clone()


def sweep(a, h):
    """Up, then down, in place. The result is in h."""
    length, step = a.shape[1], 1
    while step < length:
        combine(a, h, slice(step - 1, None, 2 * step), slice(2 * step - 1, None, 2 * step))
        step *= 2
    step //= 4
    while step:
        last = length - 1
        combine(a, h, slice(2 * step - 1, last, 2 * step), slice(3 * step - 1, None, 2 * step))
        step //= 2


def combine(a, h, left, right):
    h[:, right].addcmul_(a[:, right], h[:, left])
    a[:, right].mul_(a[:, left])


def dual(x, delta, A, B, C, chunk=64):
    """Mamba-2's scan: y (B, L, H, P). B and C are (B, L, 1, N); chunks must divide L."""
    heads = x.shape[2]
    log = (delta * A).unflatten(1, (-1, chunk)).permute(0, 3, 1, 2)  # (B, H, K, Q)
    x, B, C = (
        t.unflatten(1, (-1, chunk))
        for t in (x * delta.unsqueeze(-1), B.expand(-1, -1, heads, -1), C.expand(-1, -1, heads, -1))
    )  # (B, K, Q, H, …)
    sums = log.cumsum(-1)
    own = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, segments(log).exp(), x)
    to_end = torch.exp(sums[..., -1:] - sums)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, to_end, x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    between = segments(functional.pad(sums[..., -1], (1, 0))).exp()
    before = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
    carried = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, before, sums.exp())
    return (own + carried).flatten(1, 2)


def segments(log):
    """The sum from s + 1 to t for every s ≤ t, else -inf: (…, Q) to (…, Q, Q)."""
    size = log.shape[-1]
    ones = torch.ones(size, size, dtype=torch.bool)
    each = log.unsqueeze(-1).expand(*log.shape, size).masked_fill(~ones.tril(-1), 0)
    return each.cumsum(-2).masked_fill(~ones.tril(), -torch.inf)
