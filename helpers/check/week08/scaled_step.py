"""Exercise of week 8: a training step with a dynamic loss scale, on ranks."""

import copy

import torch

from helpers.check.oracle import NotRight, examine
from helpers.check.verdict import Verdict

LR, CLIP = 0.5, 1.0
START = {"scale": 1024.0, "growth": 2.0, "backoff": 0.5, "interval": 2, "good_steps": 0}
INF, NAN = float("inf"), float("nan")
# The true gradient of each rank in each step, before scaling; INF and NAN overflowed in fp16.
# 2^-24 is the smallest number of fp16. 60 × 1024 is near its largest, 65,504.
CASES = [
    (1, [[[3e-7, -0.25, 0.5]], [[0.125, 0.25, 0.0]], [[0.25, 0.0, 0.0]]]),  # good steps: it grows
    (1, [[[0.5, 0.25, 0.0]], [[INF, 0.25, 0.0]], [[0.25, 0.5, 0.0]], [[0.125, 0.0, 0.5]]]),
    (2, [[[0.5, 0.0, 0.25], [0.25, 0.25, -0.5]], [[3.0, 4.0, 0.0], [0.0, 0.0, 12.0]]]),  # clipped
    (2, [[[0.5, 0.5, 0.0], [NAN, 0.5, 0.0]], [[0.25, 0.0, 0.5], [0.25, 0.0, 0.0]]]),
    (2, [[[60.0, 0.0, 0.0], [60.0, 0.0, 0.0]], [[0.5, 0.0, 0.0], [0.25, 0.0, 0.0]]]),  # its sum
]


def scaled_step(fn) -> Verdict:
    """Check `fn(worker, master, gradient, scaler, lr, max_norm) -> skipped`."""
    cases = [(ranks, {"steps": steps}) for ranks, steps in CASES]
    return examine("scaled_step", fn, cases, run_steps, judge_steps)


def scaled(true: list[float], scale: float) -> torch.Tensor:
    """The gradient that a rank's backward gives: of the scaled loss, in fp16."""
    return (torch.tensor(true) * scale).half()


def run_steps(worker, solve, steps):
    master, scaler = torch.tensor([1.0, -2.0, 0.5]), dict(START)
    found = []
    for step in steps:
        gradient = scaled(step[worker.rank], scaler["scale"])
        answer = solve(worker, master, gradient, scaler, LR, CLIP)
        found.append(
            {
                "skipped": answer if isinstance(answer, bool) else repr(answer),
                "master": master.tolist(),
                "scaler": copy.copy(scaler),
            }
        )
        if not is_scale(scaler.get("scale")):
            break
    return found


def is_scale(value) -> bool:
    return isinstance(value, int | float) and 0 < value < INF


class Reference:
    """The right step, and the same with mistakes.

    Args:
        mistake: "" for none.
    """

    def __init__(self, mistake: str = ""):
        self.mistake = mistake
        self.masters: list[torch.Tensor] = []
        self.scaler = dict(START)

    def run(self, steps) -> list[list[list[float]]]:
        """The master copies of all ranks after each step."""
        ranks = len(steps[0])
        self.masters = [torch.tensor([1.0, -2.0, 0.5]) for _ in range(ranks)]
        return [self.step(step) for step in steps]

    def step(self, step):
        scale = self.scaler["scale"]
        low = [scaled(true, scale) for true in step]
        if self.mistake == "sum in fp16":
            total = sum(low[1:], low[0].clone()).float()
        else:
            total = sum(one.float() for one in low)
        finite = [bool(one.isfinite().all()) for one in low]
        if self.mistake == "clip first":
            total = total * clip_factor(total) / scale
        elif self.mistake == "never unscaled":
            total = total * clip_factor(total)
        elif self.mistake == "no clipping":
            total = total / scale
        elif self.mistake == "mean":
            total = total / scale / len(step)
            total = total * clip_factor(total)
        else:
            total = total / scale
            total = total * clip_factor(total)
        for rank, master in enumerate(self.masters):
            if finite[rank] if self.mistake == "alone" else bool(total.isfinite().all()):
                master -= LR * total
        self.adapt(bool(total.isfinite().all()))
        return [master.tolist() for master in self.masters]

    def adapt(self, good: bool):
        scaler = self.scaler
        if not good:
            scaler["scale"] *= scaler["backoff"]
            scaler["good_steps"] = 0
            return
        scaler["good_steps"] += 1
        if scaler["good_steps"] == scaler["interval"]:
            scaler["scale"] *= scaler["growth"]
            scaler["good_steps"] = 0


def clip_factor(gradient: torch.Tensor) -> float:
    return min(1.0, CLIP / max(float(gradient.norm()), 1e-12))


HINTS = {
    "clip first": "It was clipped while it was still scaled. Which gradient does max_norm limit?",
    "never unscaled": "The gradient still has the factor of the loss. What must happen before "
    "clipping and update?",
    "no clipping": "The norm of the gradient is larger than max_norm. Which factor makes it "
    "max_norm?",
    "sum in fp16": "The sum over the ranks was made in fp16, and it overflowed or lost digits. "
    "Cast first, then reduce.",
    "mean": "The ranks' gradients add up to the full gradient: a mean divides it once more.",
    "alone": "A rank skipped alone, and the others updated: now the copies differ. How do all "
    "ranks learn of an overflow? The reduced gradient is the same on all ranks.",
}


def judge_steps(runs, steps):
    reference, scaler = Reference(), []
    right = []
    for step in steps:
        right.append(reference.step(step) if right else reference.run([step])[0])
        scaler.append(dict(reference.scaler))
    wrong = {name: Reference(name).run(steps) for name in HINTS}
    for number in range(len(steps)):
        good = all(value == value for row in right[number] for value in row)
        assert good  # the reference never writes a NaN
        for rank, run in enumerate(runs):
            where = f"step {number}, rank {rank}"
            judge_one(run[number], rank, number, where, right, scaler, wrong, steps)


def judge_one(found, rank, number, where, right, scaler, wrong, steps):
    before = scaler[number - 1] if number else START
    skips = scaler[number]["scale"] < before["scale"]
    if not isinstance(found["skipped"], bool):
        raise NotRight(f"{where}: returned {found['skipped']}", "Return True or False: skipped?")
    said = found["master"]
    if not all(abs(a - b) <= 1e-5 for a, b in zip(said, right[number][rank], strict=True)):
        for name, hint in HINTS.items():
            theirs = wrong[name][number][rank]
            same = all(abs(a - b) <= 1e-5 or (a != a and b != b)
                       for a, b in zip(said, theirs, strict=True))  # fmt: skip
            if same:
                raise NotRight(f"{where}: the master copy is {plain(said)}", hint)
        hint = "Unscale, clip, then subtract lr times the gradient, in place."
        if any(value != value or abs(value) == INF for value in said):
            hint = (
                "An infinity or a NaN reached the master copy. One of them is enough to lose the "
                "training. What do you do with such a step?"
            )
        elif skips:
            hint = "A gradient of this step was not finite: nothing may change."
        raise NotRight(
            f"{where}: the master copy is {plain(said)}, and should be "
            f"{plain(right[number][rank])}",
            hint,
        )
    if found["skipped"] != skips:
        raise NotRight(
            f"{where}: returned {found['skipped']}",
            "Return whether this step's update was skipped.",
        )
    judge_scaler(found["scaler"], before, scaler[number], skips, where)


def judge_scaler(found, before, right, skipped, where):
    if found == right:
        return
    scale, ought = found.get("scale"), right["scale"]
    finding = f"{where}: the scaler is {found}, and should be {right}"
    if set(found) != set(right):
        raise NotRight(finding, "Change only 'scale' and 'good_steps', in the same dict.")
    if skipped and scale == before["scale"]:
        raise NotRight(finding, "The scale was too large for this step. What follows from that?")
    if skipped and scale != ought:
        raise NotRight(finding, "After a skipped step, multiply the scale by the backoff, once.")
    if skipped:
        raise NotRight(
            finding, "A skipped step ends the row of good steps: the count starts again at 0."
        )
    if scale > ought:
        raise NotRight(
            finding,
            "The scale grew too early. It grows after `interval` good steps in a row; a skipped "
            "step is not a good one.",
        )
    if scale < ought:
        raise NotRight(finding, "That was the last of `interval` good steps in a row: it grows.")
    raise NotRight(finding, "Count the good steps since the last change of the scale.")


def plain(values) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"
