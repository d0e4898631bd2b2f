"""The rule on numbers whose square roots and quotients are exact."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")
import triton
import triton.language as tl

from helpers.measure.kernels.interpret import interpreted
from helpers.precision.fused_adam.rule import adamw


@triton.jit
def apply(numbers, made, RULE: tl.constexpr, BLOCK: tl.constexpr):
    """Four rows p, g, m and v, and then a row for each factor, to the new p, m and v."""
    at = tl.arange(0, BLOCK)
    p, m, v = RULE(
        tl.load(numbers + at),
        tl.load(numbers + BLOCK + at),
        tl.load(numbers + 2 * BLOCK + at),
        tl.load(numbers + 3 * BLOCK + at),
        tl.load(numbers + 4 * BLOCK + at),
        tl.load(numbers + 5 * BLOCK + at),
        tl.load(numbers + 6 * BLOCK + at),
        tl.load(numbers + 7 * BLOCK + at),
        tl.load(numbers + 8 * BLOCK + at),
        tl.load(numbers + 9 * BLOCK + at),
        tl.load(numbers + 10 * BLOCK + at),
    )
    tl.store(made + at, p)
    tl.store(made + BLOCK + at, m)
    tl.store(made + 2 * BLOCK + at, v)


def applied(rows):
    numbers = torch.as_tensor(rows, dtype=torch.float64)
    made = torch.empty(3, numbers.shape[1], dtype=torch.float64)
    interpreted(apply)[(1,)](numbers, made, adamw.fn, BLOCK=numbers.shape[1])
    return made


def test_one_update_by_hand():
    """m + (g - m)/4; v/2 + 3 g²; p/8 - 5 m/(√v/2 + 1)."""
    p, g, m, v = [16.0, -8.0], [2.0, -1.0], [6.0, 7.0], [8.0, 2.0]
    factors = [[new] * 2 for new in (0.25, 0.5, 3.0, 1.0, 0.125, 5.0, 2.0)]
    found = applied([p, g, m, v, *factors])
    assert found[1].tolist() == [5.0, 5.0]  # 6 - 4/4, 7 - 8/4
    assert found[2].tolist() == [16.0, 4.0]  # 4 + 12, 1 + 3
    assert found[0].tolist() == [2 - 25 / 3, -1 - 25 / 2]  # 5·5/(4/2 + 1), 5·5/(2/2 + 1)


def test_three_steps_are_those_of_torch():
    lr, betas, eps, decay = 0.03, (0.85, 0.97), 1e-3, 0.2
    start = torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = torch.nn.Parameter(start.clone())
    theirs = torch.optim.AdamW([other], lr, betas, eps, decay)
    p, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for t in range(1, 4):
        g = torch.sin(t * start)
        other.grad = g.clone()
        theirs.step()
        size, root = lr / (1 - betas[0] ** t), math.sqrt(1 - betas[1] ** t)
        factors = (1 - betas[0], betas[1], 1 - betas[1], eps, 1 - lr * decay, size, root)
        p, m, v = applied(torch.stack([p, g, m, v, *(torch.full_like(p, f) for f in factors)]))
    for mine, right in zip((p, m, v), (other.detach(), *list(theirs.state[other].values())[1:]),
                           strict=True):  # fmt: skip
        torch.testing.assert_close(mine, right, rtol=1e-13, atol=1e-15)
