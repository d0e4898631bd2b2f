"""Exercise of week 8: Adam with a master copy in fp32 and a parameter in bf16."""

import torch

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict

LR, BETAS, EPS = 1e-3, (0.9, 0.95), 1e-8
STEPS = 12


def master_adam(fn) -> Verdict:
    """Check `fn(parameter, master, moments, gradient, step, lr, betas, eps)`, in place."""
    torch.manual_seed(hidden.seed(0))
    start = torch.randn(64)
    gradients = [
        (torch.randn(64) * 10.0 ** torch.randint(-6, 1, (64,))).bfloat16() for _ in range(STEPS)
    ]
    cases = [("12 steps of 64 numbers", (start, gradients), {})]
    return examine_here("master_adam", lambda *given: steps(fn, *given), cases, judge)


def steps(solve, start, gradients) -> list[dict]:
    """Call the student's function for every step; what it left behind."""
    parameter, master = start.bfloat16(), start.clone()
    moments = (torch.zeros(64), torch.zeros(64))
    found = []
    for number, gradient in enumerate(gradients, start=1):
        given = gradient.clone()
        solve(parameter, master, moments, given, number, LR, BETAS, EPS)
        found.append(
            {
                "parameter": parameter.clone(),
                "master": master.clone(),
                "gradient": given,
            }
        )
    return found


def right(start, gradients, mistake: str = "") -> list[torch.Tensor]:
    """The master copy after each step, in float64 where nothing is wrong."""
    wide = torch.float64
    master, found = start.to(wide), []
    first, second = torch.zeros(64, dtype=wide), torch.zeros(64, dtype=wide)
    for number, low in enumerate(gradients, start=1):
        gradient = low.to(wide)
        first = BETAS[0] * first + (1 - BETAS[0]) * gradient
        second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
        if mistake == "16-bit moments":
            first, second = first.bfloat16().to(wide), second.bfloat16().to(wide)
        if mistake == "no bias correction":
            update = first / (second.sqrt() + EPS)
        elif mistake == "counted from 0":
            age = max(number - 1, 1)
            update = first / (1 - BETAS[0] ** age)
            update = update / ((second / (1 - BETAS[1] ** age)).sqrt() + EPS)
        elif mistake == "eps inside":
            update = first / (1 - BETAS[0] ** number)
            update = update / (second / (1 - BETAS[1] ** number) + EPS).sqrt()
        else:
            update = first / (1 - BETAS[0] ** number)
            update = update / ((second / (1 - BETAS[1] ** number)).sqrt() + EPS)
        if mistake == "from the parameter":
            master = master.bfloat16().to(wide)
        master = master - LR * update
        found.append(master)
    return found


HINTS = {
    "no bias correction": "The moments start at zero, so the first steps are too small or too "
    "large. Which division corrects this?",
    "counted from 0": "In the first call, step is 1: use it as it is.",
    "16-bit moments": "The moments have lost digits. In which format must they be computed and "
    "kept?",
    "from the parameter": "The update started from the rounded parameter, so small updates are "
    "lost in each step. Which tensor remembers them?",
    "eps inside": "eps is added to the root, not to the variance under it.",
}


def judge(answer, start, gradients):
    exact = right(start, gradients)
    wrong = {name: right(start, gradients, name) for name in HINTS}
    for number, found in enumerate(answer):
        master, where = found["master"], f"step {number + 1}"
        if not torch.equal(found["gradient"], gradients[number]):
            raise NotRight(f"{where}: the gradient has changed", "Write only into the others.")
        if near(master, start) and not near(exact[number], start):
            raise NotRight(
                f"{where}: the master copy has not changed",
                "Update it in place: `master -= …` writes into the tensor, `master = …` does not.",
            )
        if not near(master, exact[number]):
            off = float((master.double() - exact[number]).abs().max())
            hint = next((HINTS[n] for n, rows in wrong.items() if near(master, rows[number])), "")
            raise NotRight(
                f"{where}: the master copy is off by up to {off:.2g}",
                hint or "Adam: two averages, each divided by 1 - beta**step; then the update.",
            )
        judge_parameter(found["parameter"], master, where)


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a.double() - b.double()).abs().max() <= 1e-6)  # fp32's digits of numbers up to 4


def judge_parameter(parameter, master, where):
    if torch.equal(parameter, master.bfloat16()):
        return
    dropped = (master.view(torch.int32) & -(2**16)).view(torch.float32).bfloat16()
    if torch.equal(parameter, dropped):
        hint = "Its last 16 bits were cut off: that always rounds toward zero. Which way is nearer?"
    else:
        hint = "At the end of a step, the parameter is the master copy, rounded to bf16."
    raise NotRight(f"{where}: the parameter is not the rounded master copy", hint)
