"""Adam with a master copy: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from notebooks.solutions import week08
from tests.check.asked import asked, drawn_anew


def adam_with(
    *,
    correct=True,
    step_offset=0,
    low_moments=False,
    from_parameter=False,
    eps_inside=False,
    write="round",
    in_place=True,
    keep_gradient=True,
    update_low=False,
):
    """The solution, with one part of it changed."""

    def solve(parameter, master, moments, gradient, step, lr, betas, eps):
        if not keep_gradient:
            gradient *= 0.5
        first, second = moments
        wide = gradient.float()
        first.lerp_(wide, 1 - betas[0])
        second.lerp_(wide.square(), 1 - betas[1])
        if low_moments:
            first.copy_(first.bfloat16())
            second.copy_(second.bfloat16())
        age = max(step + step_offset, 1)
        mean = first / (1 - betas[0] ** age) if correct else first
        variance = second / (1 - betas[1] ** age) if correct else second
        root = (variance + eps).sqrt() if eps_inside else variance.sqrt() + eps
        update = lr * mean / root
        if from_parameter:
            master.copy_(parameter.float() - update)
        elif in_place:
            master -= update
        else:
            master = master - update
        if update_low:
            parameter -= update.bfloat16()
        elif write == "round":
            parameter.copy_(master)
        elif write == "cut":
            bits = master.view(torch.int32) & -(2**16)
            parameter.copy_(bits.view(torch.float32))

    return solve


def test_the_solution_passes():
    verdict = check.master_adam(week08.master_adam)
    assert verdict, verdict


def test_the_helper_is_the_solution():
    verdict = check.master_adam(adam_with())
    assert verdict, verdict


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (adam_with(correct=False), "Which division corrects"),
        (adam_with(step_offset=-1), "In the first call, step is 1"),
        (adam_with(low_moments=True), "The moments have lost digits"),
        (adam_with(from_parameter=True), "Which tensor remembers them"),
        (adam_with(eps_inside=True), "added to the root"),
        (adam_with(write="cut"), "toward zero"),
        (adam_with(write="no"), "rounded to bf16"),
        (adam_with(update_low=True), "rounded to bf16"),
        (adam_with(in_place=False), "in place"),
        (adam_with(keep_gradient=False), "Write only into the others"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    verdict = check.master_adam(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_an_error_and_a_stub():
    def stub(parameter, master, moments, gradient, step, lr, betas, eps):
        raise NotImplementedError

    assert check.master_adam(stub).status == "not written yet"
    assert "takes 0 positional arguments" in check.master_adam(lambda: None).finding


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.master_adam, week08.master_adam))
