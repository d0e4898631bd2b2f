"""Adam with a master copy: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import NotRight
from helpers.check.week08.master_adam import judge, judge_parameter, right
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


@pytest.fixture(scope="module")
def played():
    """The inputs, and what the solution leaves behind after each step."""
    kept = []

    class Listening(elsewhere.Here):
        def call(self, fn, arguments):
            kept.append((*arguments, super().call(fn, arguments)))
            return kept[-1][-1]

    with elsewhere.at(Listening()):
        assert check.master_adam(week08.master_adam)
    ((start, gradients, found),) = kept
    return start, gradients, found


def refused(played, number, **changes):
    """The finding where the solution's step with this number has left something else behind."""
    start, gradients, found = played
    answer = [dict(one) for one in found]
    answer[number] |= {
        kind: change(found[number][kind].clone()) for kind, change in changes.items()
    }
    with pytest.raises(NotRight) as wrong:
        judge(answer, start, gradients)
    return wrong.value.finding


def off(by):
    def change(tensor):
        tensor[-1] += by
        return tensor

    return change


@pytest.mark.parametrize("number", [0, 5, 11])
def test_each_step_counts(played, number):
    where = f"step {number + 1}: the"
    assert refused(played, number, gradient=off(1.0)) == f"{where} gradient has changed"
    for by in (3.2e-6, -3.2e-6):
        finding = refused(played, number, master=off(by))
        assert finding.startswith(f"{where} master copy is off by up to 3")
        assert finding.endswith("e-06")
    finding = refused(
        played, number, parameter=lambda p: torch.where(torch.arange(64) == 63, -p, p)
    )
    assert finding == f"{where} parameter is not the rounded master copy"
    finding = refused(played, number, master=lambda m: played[0].clone())
    assert finding == f"{where} master copy has not changed"


def test_rounding_of_the_master_copy_is_right(played):
    start, gradients, found = played
    for by in (4e-7, -4e-7):
        answer = [one | {"master": off(by)(one["master"].clone())} for one in found]
        for one in answer:
            one["parameter"] = one["master"].bfloat16()
        judge(answer, start, gradients)


def test_gradients_are_of_many_sizes(played):
    """Else eps, and digits that 16 bits lose, would not show."""
    start, gradients, found = played
    assert len(found) == len(gradients) == 12
    assert start.dtype is torch.float32
    assert {g.dtype for g in gradients} == {torch.bfloat16}
    for gradient in gradients:
        assert (gradient.abs() < 1e-4).sum() > 10
        assert (gradient.abs() > 1e-2).sum() > 10
        assert gradient.abs().min() < 1e-5
        assert gradient.abs().max() > 0.5
        assert len(gradient) == len(start) == 64
        assert 10 < (gradient > 0).sum() < 54


def test_what_the_function_is_given():
    seen = []

    def solve(parameter, master, moments, gradient, step, *numbers):
        seen.append((step, *numbers))
        if step == 1:
            assert torch.equal(parameter, master.bfloat16())
            assert not any(moment.any() for moment in moments)
        assert [t.dtype for t in (parameter, master, *moments, gradient)] == [
            torch.bfloat16, torch.float32, torch.float32, torch.float32, torch.bfloat16,
        ]  # fmt: skip
        week08.master_adam(parameter, master, moments, gradient, step, *numbers)

    assert check.master_adam(solve)
    assert seen == [(step, 1e-3, (0.9, 0.95), 1e-8) for step in range(1, 13)]


def test_the_reference_is_torch_s_own_adam(played):
    start, gradients, _ = played
    exact = start.double().requires_grad_()
    optimizer = torch.optim.Adam([exact], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for gradient, found in zip(gradients, right(start, gradients), strict=True):
        exact.grad = gradient.double()
        optimizer.step()
        torch.testing.assert_close(found, exact.detach(), rtol=0, atol=1e-12)


def test_a_number_whose_last_bits_were_cut_off():
    master = torch.tensor([1.0, 1 + 2**-8 + 2**-9, -1 - 2**-8 - 2**-9])
    judge_parameter(master.bfloat16(), master, "step 3")
    cut = torch.tensor([1.0, 1.0, -1.0]).bfloat16()
    for parameter, hint in ((cut, "rounds toward zero"), (2 * cut, "rounded to bf16")):
        with pytest.raises(NotRight, match="step 3: ") as wrong:
            judge_parameter(parameter, master, "step 3")
        assert hint in wrong.value.hint


def test_nothing_has_to_change_without_a_gradient():
    start, nothing = torch.randn(64), [torch.zeros(64).bfloat16()] * 2
    left = {"master": start, "parameter": start.bfloat16(), "gradient": nothing[0]}
    judge([left, left], start, nothing)
    with pytest.raises(NotRight, match="step 2: the master copy is off by up to"):
        judge([left, left | {"master": start + 0.5}], start, nothing)
