"""Exercise of week 8: the update rule of a mixed-precision AdamW, inside a Triton kernel.

The kernel runs in Triton's interpreter, with the student's function as its rule.
"""

import numpy as np
import torch
import triton.language as tl

from helpers.check import hidden
from helpers.check.answers import difference
from helpers.check.exercise import Edit, Exercise
from helpers.check.in_kernel import BLOCK, KINDS, launched

NUMBERS = {
    "scale": 64.0, "lr": 0.125, "beta1": 0.75, "beta2": 0.5, "correction1": 0.0,
    "correction2": 0.0, "eps": 0.25, "weight_decay": 0.5,
}  # fmt: skip


def blocks():
    """Numbers that fp16 cannot hold exactly; the gradients are scaled, and have both signs."""
    made = []
    for words, t, decay, overflow in (
        ("the first step, without decay", 1, 0.0, False),
        ("the third step, without decay", 3, 0.0, False),
        ("the third step, with decay", 3, 0.5, False),
        ("the third step, after an overflow", 3, 0.5, True),
    ):
        generator = torch.Generator().manual_seed(hidden.seed(t))
        p, g, m, v = torch.rand(4, BLOCK, generator=generator)
        g = ((g + 0.2) * torch.tensor([1.0, -1.0] * (BLOCK // 2)) * NUMBERS["scale"]).half()
        if overflow:
            g[3] = torch.inf
        started = float(t > 1)
        given = {"p": p + 0.5, "g": g, "m": (m - 0.5) * started, "v": v * started}
        corrections = {f"correction{k}": 1 - NUMBERS[f"beta{k}"] ** t for k in (1, 2)}
        made.append((words, (given, overflow, NUMBERS | corrections | {"weight_decay": decay})))
    return made


def play_rule(solve, given, overflow, numbers) -> dict:
    with np.errstate(all="ignore"):
        found = launched(solve, given, overflow, numbers)
    if found["misfit"]:
        return {"returned": found["misfit"]}
    types = {f"the type of {kind}": found["types"][kind] for kind in KINDS}
    return {"returned": "four blocks"} | types | {kind: found[kind].tolist() for kind in KINDS}


def say_rule(facet, found, right, *arguments) -> str:
    return f"{found}" if facet == "returned" else f"{facet}: {difference(found, right)[0]}"


def rule(p, g, m, v, overflow, scale, lr, beta1, beta2, correction1, correction2, eps,
         weight_decay):  # fmt: skip
    wide = g.to(tl.float32) / scale
    new_m = beta1 * m + (1 - beta1) * wide
    new_v = beta2 * v + (1 - beta2) * wide * wide
    root = tl.sqrt(new_v / correction2) + eps
    step = lr * (new_m / correction1) / root
    new_p = p * (1 - lr * weight_decay) - step
    new_p = tl.where(overflow, p, new_p)
    new_m = tl.where(overflow, m, new_m)
    new_v = tl.where(overflow, v, new_v)
    low = new_p.to(tl.float16)
    return new_p, new_m, new_v, low


DECAYED, UNSCALED = "p * (1 - lr * weight_decay) - step", "g.to(tl.float32) / scale"
KEEP_P = "new_p = tl.where(overflow, p, new_p)"
KEEP_M = "new_m = tl.where(overflow, m, new_m)"
KEEP_V = "new_v = tl.where(overflow, v, new_v)"
RETURN = "return new_p, new_m, new_v, low"
IN_16_BITS = "{} is kept in fp32: in 16 bits an average stops moving when its updates are small."
FOUR = "Return four blocks: p, m and v in float32, and low in float16."
fused_update = Exercise(
    right=rule,
    play=play_rule,
    cases=blocks,
    close=2e-6,
    say=say_rule,
    slips=(
        (Edit(UNSCALED, "g.to(tl.float32)"), "g was multiplied by the scale, so that it fits into "
         "fp16. Undo that first."),
        (Edit(UNSCALED, "g.to(tl.float32) * scale"), "g was multiplied by the scale already. Which "
         "operation undoes that?"),
        (Edit("(1 - beta1) * wide", "(1 - beta1) * wide * scale"), "The first moment has the "
         "scaled gradient. Unscale before both moments."),
        (Edit("wide * wide", "wide * wide * scale * scale"), "The second moment has the scaled "
         "gradient. Unscale before you square."),
        (Edit("wide * wide", "wide * wide * scale"), "The second moment has the square of the "
         "scale. Unscale before you square."),
        (Edit("wide * wide", "(g * g).to(tl.float32) / (scale * scale)"), "The square was made in "
         "fp16, where it overflows or loses digits. Cast and unscale, then square."),
        (Edit("wide * wide", "wide"), "The second moment averages the squares of the gradients."),
        (Edit("new_m = beta1", "beta1, beta2 = beta2, beta1\n    new_m = beta1"),
         "Which beta belongs to the average of g, and which to the average of g²?"),
        (Edit("root = tl",
              "new_m = new_m.to(tl.float16).to(tl.float32)\n    new_v = "
              "new_v.to(tl.float16).to(tl.float32)\n    root = tl"), "The moments have lost "
         "digits: they were rounded to fp16 on the way. In which format does the sum have to be "
         "computed and kept?"),
        (Edit("new_v / correction2", "new_v", "new_m / correction1", "new_m"), "The moments start "
         "at 0, so they are too small in the first steps. correction1 and correction2 repair "
         "that."),
        (Edit("new_v / correction2", "new_v"), "The second moment starts at 0, too. Which number "
         "corrects it?"),
        (Edit("new_m / correction1", "new_m"), "The first moment starts at 0, too. Which number "
         "corrects it?"),
        (Edit("new_v / correction2", "new_v * correction2", "new_m / correction1",
              "new_m * correction1"), "The moments are too small: divide them by the corrections."),
        (Edit("root = tl", "new_m, new_v = new_m / correction1, new_v / correction2\n    root = tl",
              "tl.sqrt(new_v / correction2)", "tl.sqrt(new_v)", "(new_m / correction1)", "new_m"),
         Edit(RETURN, "return new_p, new_m / correction1, new_v / correction2, low"),
         "You return the corrected moments, and the next step would correct them again. Keep the "
         "averages as they are."),
        (Edit("tl.sqrt(new_v / correction2) + eps", "tl.sqrt(new_v / correction2 + eps)"),
         "eps is added to the root, not to the variance under it."),
        (Edit("tl.sqrt(new_v / correction2) + eps", "(tl.sqrt(new_v) + eps) / correction2**0.5"),
         "eps is added after the second moment is corrected."),
        (Edit("tl.sqrt(new_v / correction2)", "new_v / correction2"), "Divide by the root of the "
         "second moment: the step has the unit of lr, whatever the size of the gradients."),
        (Edit("new_m = beta1", "wide = wide + weight_decay * p\n    new_m = beta1", DECAYED,
              "p - step"), "The decay went into the gradient, and from there into both moments: "
         "that is L2 regularisation. In AdamW the decay is decoupled: which tensor does it shrink "
         "directly?"),
        (Edit(DECAYED, "p - step"), "Where is the weight decay?"),
        (Edit(DECAYED, "p * (1 - weight_decay) - step"), "In PyTorch, a step shrinks p by lr · "
         "weight_decay."),
        (Edit(DECAYED, "(p - step) * (1 - lr * weight_decay)"), "The decay shrinks p as it was "
         "before the step: your decay shrinks the step, too."),
        (Edit(DECAYED, "p * (1 - lr * weight_decay) + step"), "The step goes up the gradient. "
         "Which sign leads down?"),
        (Edit(KEEP_P, "", KEEP_M, "", KEEP_V, ""), "The overflow is in p, m or v now. After an "
         "overflow nothing changes: tl.where(condition, this, that) chooses number by number."),
        (Edit("new_m = beta1", "wide = tl.where(overflow, 0.0, wide)\n    new_m = beta1", KEEP_P,
              "", KEEP_M, "", KEEP_V, ""), "A gradient of 0 is a step too: the averages fade, and "
         "p moves and decays. After an overflow keep the old p, m and v."),
        (Edit(KEEP_P, "new_p = p + (1.0 - overflow) * (new_p - p)", KEEP_M,
              "new_m = m + (1.0 - overflow) * (new_m - m)", KEEP_V,
              "new_v = v + (1.0 - overflow) * (new_v - v)"), "0 times infinity is NaN: a product "
         "cannot hide an overflow. tl.where(condition, this, that) chooses number by number."),
        (Edit(KEEP_M, "", KEEP_V, ""), Edit(KEEP_M, ""), Edit(KEEP_V, ""), "p stayed, but the "
         "moments changed. One infinity remains in an average for ever."),
        (Edit(KEEP_P, ""), "The moments stayed, but p changed. After an overflow nothing changes."),
        (Edit(KEEP_P, "new_p = tl.where(overflow, new_p, p)", KEEP_M,
              "new_m = tl.where(overflow, new_m, m)", KEEP_V,
              "new_v = tl.where(overflow, new_v, v)"), "Nothing changes where there is no "
         "overflow: tl.where(condition, this, that) gives `this` where the condition is true."),
        (Edit(KEEP_P, "low = new_p.to(tl.float16)\n    " + KEEP_P,
              "    low = new_p.to(tl.float16)\n    return", "    return"), "p, m and v stayed, but "
         "low was rounded from the new p. After an overflow low is the old p, too."),
        (Edit("low = new_p", "low = p"), "low is the rounded parameter of before. Round the new "
         "one."),
        (Edit(RETURN, "return low.to(tl.float32), new_m, new_v, low"), "p itself is rounded to "
         "fp16. It is the master copy, which keeps the small updates. Only low is rounded."),
        (Edit(RETURN, "return low, new_m, new_v, low"), IN_16_BITS.format("p")),
        (Edit(RETURN, "return new_p, new_m.to(tl.float16), new_v.to(tl.float16), low"),
         IN_16_BITS.format("m")),
        (Edit(RETURN, "return new_p, new_m, new_v.to(tl.float16), low"), IN_16_BITS.format("v")),
        (Edit(".to(tl.float16)", ""), "low is kept in fp16. `x.to(tl.float16)` rounds to the "
         "nearest number."),
        (Edit(RETURN, "return new_p, new_m, new_v"), Edit(RETURN,
              "return new_p, new_m, new_v, 1.0"), FOUR),
    ),
    about={"returned": FOUR},
    last="Compare line by line: unscale g; m and v; their corrections; the decay; the step.",
)  # fmt: skip
