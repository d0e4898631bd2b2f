"""A step with a loss scale: the solution passes; each common mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from notebooks.solutions import week08

pytestmark = pytest.mark.usefixtures("shared_ranks")


def step_with(
    *,
    cast="before",
    clip="after",
    unscale=True,
    together=True,
    average=False,
    skip=True,
    grow_after_skip=False,
    reset=True,
    backoff=True,
    in_place=True,
    interval=0,
    says=bool,
):
    """The solution, with one part of it changed."""

    def solve(worker, master, gradient, scaler, lr, max_norm):
        own = bool(gradient.isfinite().all())
        gradient = gradient.float() if cast == "before" else gradient.clone()
        dist.all_reduce(gradient)
        gradient = gradient.float()
        if average:
            gradient /= worker.world_size
        factor = lambda: min(1.0, max_norm / max(gradient.norm().item(), 1e-12))  # noqa: E731
        if clip == "before":
            gradient *= factor()
        if unscale:
            gradient /= scaler["scale"]
        good = bool(gradient.isfinite().all()) if together else own
        overflow = not bool(gradient.isfinite().all())
        if clip == "after" and not overflow:
            gradient *= factor()
        if good or not skip:
            if in_place:
                master -= lr * gradient
            else:
                master = master - lr * gradient
        if overflow:
            if backoff:
                scaler["scale"] *= scaler["backoff"]
            if reset:
                scaler["good_steps"] = 0
            if not grow_after_skip:
                return says(True)
        scaler["good_steps"] += 1
        if scaler["good_steps"] >= scaler["interval"] + interval:
            scaler["scale"] *= scaler["growth"]
            scaler["good_steps"] = 0
        return says(overflow)

    return solve


def a_thousandth_more(worker, master, gradient, scaler, lr, max_norm):
    return week08.scaled_step(worker, master, gradient, scaler, 1.001 * lr, max_norm)


def test_the_solution_passes():
    verdict = check.scaled_step(week08.scaled_step)
    assert verdict, verdict


def test_the_helper_is_the_solution():
    verdict = check.scaled_step(step_with())
    assert verdict, verdict


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (step_with(clip="before"), "clipped while it was still scaled"),
        (step_with(clip="never"), "Which factor makes it max_norm"),
        (step_with(unscale=False), "still has the factor of the loss"),
        (step_with(cast="after"), "Cast first, then reduce"),
        (step_with(average=True), "a mean divides it once more"),
        (step_with(together=False), "A rank skipped alone"),
        (step_with(skip=False), "enough to lose the training"),
        (step_with(grow_after_skip=True), "starts again at 0"),
        (step_with(reset=False), "starts again at 0"),
        (step_with(backoff=False), "too large for this step"),
        (step_with(interval=1), "the last of `interval` good steps"),
        (step_with(interval=-1), "grew too early"),
        (step_with(in_place=False), "in place"),
        (step_with(says=lambda skipped: None), "Return True or False"),
        (step_with(says=lambda skipped: not skipped), "Return whether this step"),
        (step_with(says=lambda skipped: False), "Return whether this step"),
        (a_thousandth_more, "subtract lr times the gradient"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    verdict = check.scaled_step(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_a_scaler_with_other_keys():
    def solve(worker, master, gradient, scaler, lr, max_norm):
        scaler["seen"] = 1
        return week08.scaled_step(worker, master, gradient, scaler, lr, max_norm)

    assert "Change only" in check.scaled_step(solve).hint


def test_a_broken_scale_ends_the_run():
    def solve(worker, master, gradient, scaler, lr, max_norm):
        answer = week08.scaled_step(worker, master, gradient, scaler, lr, max_norm)
        scaler["scale"] = float("nan")
        return answer

    assert check.scaled_step(solve).status == "wrong"


def test_the_gradients_are_in_fp16_and_on_ranks():
    seen = []

    def solve(worker, master, gradient, scaler, lr, max_norm):
        assert gradient.dtype is torch.float16
        assert master.dtype is torch.float32
        return week08.scaled_step(worker, master, gradient, scaler, lr, max_norm)

    assert check.scaled_step(solve), seen
