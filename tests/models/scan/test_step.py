"""A step agrees with sums by hand, and many steps with the loop over a sequence."""

import math

import pytest
import torch

from helpers.models.scan.selective import selective_scan
from helpers.models.scan.ssd import ssd
from helpers.models.scan.step import selective_step, ssd_step

EXACT = {"rtol": 0, "atol": 1e-12}


def some(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("sequences", "channels", "state"), [(1, 1, 1), (2, 3, 5), (0, 2, 2)])
def test_a_step_by_hand(sequences, channels, state):
    x, delta = some(sequences, channels, seed=0), some(sequences, channels, seed=1).exp()
    A, D = -some(channels, state, seed=2).exp(), some(channels, seed=3)
    B, C = some(sequences, state, seed=4), some(sequences, state, seed=5)
    h = some(sequences, channels, state, seed=6)
    before = h.clone()
    y, after = selective_step(x, delta, A, B, C, D, h)
    assert torch.equal(h, before)  # a cache's state is not changed
    assert (y.shape, after.shape) == ((sequences, channels), (sequences, channels, state))
    for b in range(sequences):
        for e in range(channels):
            step, sent = delta[b, e].item(), 0.0
            for n in range(state):
                new = math.exp(step * A[e, n]) * h[b, e, n] + step * B[b, n] * x[b, e]
                sent += C[b, n] * new
                torch.testing.assert_close(after[b, e, n], new, **EXACT)
            torch.testing.assert_close(y[b, e], sent + D[e] * x[b, e], **EXACT)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_step_of_heads_by_hand(groups):
    sequences, heads, width, state = 2, 4, 3, 5
    x, delta = some(sequences, heads, width, seed=0), some(sequences, heads, seed=1).exp()
    A, D = -some(heads, seed=2).exp(), some(heads, seed=3)
    B, C = some(sequences, groups, state, seed=4), some(sequences, groups, state, seed=5)
    h = some(sequences, heads, width, state, seed=6)
    before = h.clone()
    y, after = ssd_step(x, delta, A, B, C, D, h)
    assert torch.equal(h, before)
    for b in range(sequences):
        for k in range(heads):
            group = k // (heads // groups)
            wrote = delta[b, k] * torch.outer(x[b, k], B[b, group])
            new = (delta[b, k] * A[k]).exp() * h[b, k] + wrote
            torch.testing.assert_close(after[b, k], new, **EXACT)
            read = new @ C[b, group] + D[k] * x[b, k]
            torch.testing.assert_close(y[b, k], read, **EXACT)


def test_steps_are_the_scan():
    x, delta = some(2, 6, 3, seed=0), some(2, 6, 3, seed=1).exp()
    A, D = -some(3, 4, seed=2).exp(), some(3, seed=3)
    B, C = some(2, 6, 4, seed=4), some(2, 6, 4, seed=5)
    first = some(2, 3, 4, seed=6)
    expected, last = selective_scan(x, delta, A, B, C, D, first)
    h, found = first, []
    for t in range(6):
        y, h = selective_step(x[:, t], delta[:, t], A, B[:, t], C[:, t], D, h)
        found.append(y)
    torch.testing.assert_close(torch.stack(found, 1), expected, **EXACT)
    torch.testing.assert_close(h, last, **EXACT)


def test_steps_of_heads_are_the_scan():
    x, delta = some(2, 6, 4, 3, seed=0), some(2, 6, 4, seed=1).exp()
    A, D = -some(4, seed=2).exp(), some(4, seed=3)
    B, C = some(2, 6, 2, 5, seed=4), some(2, 6, 2, 5, seed=5)
    first = some(2, 4, 3, 5, seed=6)
    expected, last = ssd(x, delta, A, B, C, D, first, chunk=4)
    h, found = first, []
    for t in range(6):
        y, h = ssd_step(x[:, t], delta[:, t], A, B[:, t], C[:, t], D, h)
        found.append(y)
    torch.testing.assert_close(torch.stack(found, 1), expected, **EXACT)
    torch.testing.assert_close(h, last, **EXACT)
