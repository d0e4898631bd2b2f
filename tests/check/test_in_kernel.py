"""A rule in a kernel: what it wrote, or what is wrong with its answer."""

import pytest

pytest.importorskip("triton", reason="Triton is there on Linux only")
import torch
import triton
import triton.language as tl

from helpers.check.in_kernel import BLOCK, launched
from helpers.check.week08.fused import NUMBERS

GIVEN = NUMBERS | {"correction1": 0.375, "correction2": 0.875, "eps": 0.0625}


def made(solve, overflow=False) -> dict:
    given = {kind: torch.arange(BLOCK) + 10.0 * place for place, kind in enumerate("pgmv")}
    return launched(solve, given, overflow, GIVEN)


def test_each_block_is_written_to_its_own_place():
    def rule(p, g, m, v, overflow, scale, lr, *rest):
        sums = [p + g]
        for number in rest:  # beta1, beta2, correction1, correction2, eps, weight_decay
            sums.append(number + 2 * sums[-1])
        blocks = [sums[-1], m + lr, v * scale, tl.where(overflow, m, v).to(tl.float16)]
        return blocks if overflow else tuple(blocks)

    for overflow in (False, True):
        found = made(triton.jit(rule) if overflow else rule, overflow)
        assert found["misfit"] == ""
        assert found["types"] == {"p": "fp32", "m": "fp32", "v": "fp32", "low": "fp16"}
        row = torch.arange(BLOCK)
        *_, beta1, beta2, correction1, correction2, eps, weight_decay = GIVEN.values()
        sums = 64.0 * (2 * row + 10) + 32 * beta1 + 16 * beta2 + 8 * correction1
        sums += 4 * correction2 + 2 * eps + weight_decay
        assert found["p"].tolist() == sums.tolist()
        assert found["g"].tolist() == (row + 10).tolist()
        assert found["low"].dtype == torch.float16
        assert found["m"].tolist() == (row + 20 + GIVEN["lr"]).tolist()
        assert found["v"].tolist() == ((row + 30) * GIVEN["scale"]).tolist()
        assert found["low"].tolist() == (row + (20 if overflow else 30)).tolist()


@pytest.mark.parametrize(
    ("answer", "misfit"),
    [
        (lambda p, m, v: None, "returned NoneType"),
        (lambda p, m, v: (p, m, v), "returned 3 values"),
        (lambda p, m, v: [p, m, v, p, p], "returned 5 values"),
        (lambda p, m, v: (p, m, v, 1.0), "returned float as low"),
        (lambda p, m, v: (p[:, None], m, v, p), "returned a block of shape (8, 1) as p"),
        (lambda p, m, v: (p, tl.arange(0, 16), v, p), "returned a block of shape (16,) as m"),
    ],
)
def test_what_is_not_four_blocks(answer, misfit):
    found = made(lambda p, g, m, v, *_: answer(p, m, v))
    assert misfit in found["misfit"]
    assert "types" not in found


def test_the_student_s_own_error_is_raised():
    def failing(p, *_):
        return p.no_such_method()

    with pytest.raises(AttributeError, match="no_such_method"):
        made(failing)
