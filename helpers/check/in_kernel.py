"""Run a student's update rule inside a Triton kernel, in Triton's interpreter.

In a file of its own, because a kernel cannot travel by value.
"""

import torch
import triton
import triton.language as tl

from helpers.measure.kernels.interpret import interpreted

BLOCK = 8
KINDS = ("p", "m", "v", "low")


@triton.jit
def kernel(
    p_, g_, m_, v_, low_, overflow, scale, lr, beta1, beta2, correction1, correction2, eps,
    weight_decay, RULE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    places = tl.arange(0, SIZE)
    p, g = tl.load(p_ + places), tl.load(g_ + places)
    m, v = tl.load(m_ + places), tl.load(v_ + places)
    p, m, v, low = RULE(
        p,
        g,
        m,
        v,
        overflow != 0,
        scale,
        lr,
        beta1,
        beta2,
        correction1,
        correction2,
        eps,
        weight_decay,
    )
    tl.store(p_ + places, p)
    tl.store(m_ + places, m)
    tl.store(v_ + places, v)
    tl.store(low_ + places, low)


def launched(solve, given, overflow, numbers) -> dict:
    """Run the kernel with the student's rule: what it wrote, or what is wrong with the answer."""
    low = torch.zeros(BLOCK, dtype=torch.float16)
    seen = {}
    solve = getattr(solve, "fn", solve)  # of @triton.jit

    def rule(*arguments):
        try:
            answer = solve(*arguments)
        except Exception as error:
            seen["error"] = error
            raise
        seen["answer"] = answer  # if it cannot be stored, the interpreter fails
        return answer

    places = (given[kind] for kind in ("p", "g", "m", "v"))
    try:
        interpreted(kernel)[(1,)](
            *places, low, int(overflow), *numbers.values(), RULE=rule, SIZE=BLOCK
        )
    except Exception:
        if "error" in seen:
            raise seen["error"] from None
        if "answer" not in seen or not misfit(seen["answer"]):
            raise
    found = {"misfit": misfit(seen["answer"]), **given, "low": low}
    if not found["misfit"]:
        found["types"] = {kind: str(x.dtype) for kind, x in zip(KINDS, seen["answer"], strict=True)}
    return found


def misfit(answer) -> str:
    """What an answer is, if it is not four blocks; else nothing."""
    if not isinstance(answer, tuple | list | tl.tuple) or len(answer) != len(KINDS):
        return f"returned {describe(answer)}"
    for kind, x in zip(KINDS, answer, strict=True):
        if not isinstance(x, tl.tensor) or tuple(x.shape) != (BLOCK,):
            return f"returned {describe(x)} as {kind}"
    return ""


def describe(x) -> str:
    if isinstance(x, tl.tensor):
        return f"a block of shape {tuple(int(n) for n in x.shape)}"
    return f"{len(x)} values" if isinstance(x, tuple | list | tl.tuple) else type(x).__name__
