"""Exercise of week 8: the update rule of a mixed-precision AdamW, inside a Triton kernel.

The kernel runs in Triton's interpreter, with the student's function as its rule.
"""

import numpy as np
import torch

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.in_kernel import BLOCK, KINDS, launched
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict

NUMBERS = {
    "scale": 64.0, "lr": 0.125, "beta1": 0.75, "beta2": 0.5, "correction1": 0.0,
    "correction2": 0.0, "eps": 0.25, "weight_decay": 0.5,
}  # fmt: skip
TYPES = {"p": "fp32", "m": "fp32", "v": "fp32", "low": "fp16"}
# words, then: the step, the weight decay, whether a gradient has overflowed
CASES = (
    ("the first step, without decay", 1, 0.0, False),
    ("the third step, without decay", 3, 0.0, False),
    ("the third step, with decay", 3, 0.5, False),
    ("the third step, after an overflow", 3, 0.5, True),
)


def fused_update(fn) -> Verdict:
    """Check `fn(p, g, m, v, overflow, scale, lr, …) -> (p, m, v, low)`, as a kernel's rule."""
    cases = []
    for where, step, decay, overflow in CASES:
        numbers = dict(NUMBERS, weight_decay=decay)
        numbers["correction1"] = 1 - numbers["beta1"] ** step
        numbers["correction2"] = 1 - numbers["beta2"] ** step
        cases.append((where, (tensors(step, overflow), overflow, numbers), {}))
    return examine_here("fused_update", lambda *given: launched(fn, *given), cases, judge)


def tensors(step: int, overflow: bool) -> dict[str, torch.Tensor]:
    """Numbers that fp16 cannot hold exactly; the gradients are scaled, and have both signs."""
    generator = torch.Generator().manual_seed(hidden.seed(step))
    p, g, m, v = torch.rand(4, BLOCK, generator=generator)
    g = ((g + 0.2) * torch.tensor([1.0, -1.0] * (BLOCK // 2)) * NUMBERS["scale"]).half()
    if overflow:
        g[3] = torch.inf
    if step == 1:
        m, v = torch.zeros(2, BLOCK)
    return {"p": p + 0.5, "g": g, "m": m - 0.5 * (step > 1), "v": v}


def right(given, overflow, numbers, mistake="") -> dict[str, np.ndarray]:
    """The update in float64; with a mistake, what that mistake gives."""
    p, g, m, v = (given[kind].double().numpy() for kind in ("p", "g", "m", "v"))
    n, old = numbers, (p, m, v)
    c1, c2 = n["correction1"], n["correction2"]
    if mistake == "not unscaled":
        g = g * n["scale"]
    if mistake == "unscaled twice":
        g = g / n["scale"]
    g = g / n["scale"]
    if mistake == "coupled":
        g = g + n["weight_decay"] * p
    m = n["beta1"] * m + (1 - n["beta1"]) * (g * n["scale"] if mistake == "m scaled" else g)
    v = n["beta2"] * v + (1 - n["beta2"]) * (g * n["scale"] if mistake == "v scaled" else g) ** 2
    if mistake == "betas swapped":
        m = n["beta2"] * old[1] + (1 - n["beta2"]) * g
        v = n["beta1"] * old[2] + (1 - n["beta1"]) * g**2
    if mistake == "not squared":
        v = n["beta2"] * old[2] + (1 - n["beta2"]) * g
    if mistake == "half moments":
        m, v = m.astype(np.float16).astype(float), v.astype(np.float16).astype(float)
    m_hat = m if mistake in ("no correction", "v corrected only") else m / c1
    v_hat = v if mistake in ("no correction", "m corrected only") else v / c2
    if mistake == "corrected by products":
        m_hat, v_hat = m * c1, v * c2
    root = np.sqrt(v_hat) + n["eps"]
    if mistake == "eps inside":
        root = np.sqrt(v_hat + n["eps"])
    if mistake == "no root":
        root = v_hat + n["eps"]
    if mistake == "eps before":
        root = (np.sqrt(v) + n["eps"]) / np.sqrt(c2)
    shrunk = p * (1 - n["lr"] * n["weight_decay"])
    if mistake in ("no decay", "coupled"):
        shrunk = p
    if mistake == "decay without lr":
        shrunk = p * (1 - n["weight_decay"])
    step = n["lr"] * m_hat / root
    new = (shrunk + step if mistake == "uphill" else shrunk - step), m, v
    if overflow and mistake != "overflow ignored":
        new = old
    if overflow and mistake == "moments after an overflow":
        new = (old[0], m, v)
    low = {"low of the old": old[0]}.get(mistake, new[0]).astype(np.float16)
    if mistake == "p rounded":
        new = (low.astype(float), *new[1:])
    return dict(zip(KINDS, (*new, low.astype(float)), strict=True))


HINTS = {
    "not unscaled": "g was multiplied by the scale, so that it fits into fp16. Undo that first.",
    "unscaled twice": "The gradient was divided by the scale twice.",
    "m scaled": "The first moment has the scaled gradient. Unscale before both moments.",
    "v scaled": "The second moment has the scaled gradient. Unscale before you square.",
    "coupled": "The decay went into the gradient, and from there into both moments: that is L2 "
    "regularisation. In AdamW the decay is decoupled: which tensor does it shrink directly?",
    "betas swapped": "Which beta belongs to the average of g, and which to the average of g²?",
    "not squared": "The second moment averages the squares of the gradients.",
    "half moments": "The moments have lost digits: they were rounded to fp16 on the way. In which "
    "format does the sum have to be computed and kept?",
    "no correction": "The moments start at 0, so they are too small in the first steps. "
    "correction1 and correction2 repair that.",
    "m corrected only": "The second moment starts at 0, too. Which number corrects it?",
    "v corrected only": "The first moment starts at 0, too. Which number corrects it?",
    "corrected by products": "The moments are too small: divide them by the corrections.",
    "eps inside": "eps is added to the root, not to the variance under it.",
    "eps before": "eps is added after the second moment is corrected.",
    "no root": "Divide by the root of the second moment: the step has the unit of lr, whatever the "
    "size of the gradients.",
    "no decay": "Where is the weight decay?",
    "decay without lr": "In PyTorch, a step shrinks p by lr · weight_decay.",
    "uphill": "The step goes up the gradient. Which sign leads down?",
    "overflow ignored": "The overflow is in p, m or v now. After an overflow nothing changes: "
    "tl.where(condition, this, that) chooses number by number.",
    "moments after an overflow": "p stayed, but the moments changed. One infinity remains in an "
    "average for ever.",
    "low of the old": "low is the rounded parameter of before. Round the new one.",
    "p rounded": "p itself is rounded to fp16. It is the master copy, which keeps the small "
    "updates. Only low is rounded.",
}


def judge(found, given, overflow, numbers):
    if found["misfit"]:
        raise NotRight(
            found["misfit"], "Return four blocks: p, m and v in float32, and low in float16."
        )
    for kind, type_ in TYPES.items():
        if found["types"][kind] != type_:
            hint = f"{kind} is kept in {type_} in memory."
            if kind in ("m", "v"):
                hint += " In 16 bits an average stops moving when its updates are small."
            if kind == "low":
                hint += " `x.to(tl.float16)` rounds to the nearest number."
            raise NotRight(f"{kind} is a block of {found['types'][kind]}", hint)
    with np.errstate(all="ignore"):
        exact = right(given, overflow, numbers)
        wrong = {name: right(given, overflow, numbers, name) for name in HINTS}
    if all(map(near, found_in(found), exact.values())):
        return
    hint = next(
        (HINTS[n] for n, rows in wrong.items() if all(map(near, found_in(found), rows.values()))),
        "Compare line by line: unscale g; m and v; their corrections; the decay; the step.",
    )
    lines = [
        f"{kind}[{place}] is {made[place]:.6g}; it should be {true[place]:.6g}"
        for kind, made, true in zip(KINDS, found_in(found), exact.values(), strict=True)
        if not near(made, true)
        for place in [int(np.argmax(~close(made, true)))]
    ]
    raise NotRight("; ".join(lines), hint)


def found_in(found) -> list[np.ndarray]:
    return [found[kind].double().numpy() for kind in KINDS]


def close(made, true) -> np.ndarray:
    """float32's digits; a number next to a tie may be rounded to fp16's other neighbour."""
    return np.isclose(made, true, rtol=2e-6, atol=2e-6, equal_nan=True)


def near(made, true) -> bool:
    return bool(close(made, true).all())
