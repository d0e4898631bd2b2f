"""Week 8, beyond the loop over all exercises: the references, and other right answers."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week08 import precision
from helpers.plans.zero_memory import zero_memory
from notebooks.solutions import week08

NAN = float("nan")


def test_a_master_copy_is_trained_as_torch_trains():
    ((words, (start, gradients)),) = precision.training()
    assert words == f"{len(gradients)} steps of {len(start)} numbers"
    found = precision.play_training(precision.adam, start, gradients)
    twin = start.double().requires_grad_()
    optimizer = torch.optim.Adam([twin], precision.RATE, precision.BETAS, precision.EPS)
    for k, gradient in enumerate(gradients, start=1):
        twin.grad = gradient.double()
        optimizer.step()
        master = found[f"step {k}: the master copy has"].double()
        torch.testing.assert_close(master, twin.detach(), rtol=1e-6, atol=1e-6)
        assert not found[f"step {k}: the parameter, beside the master copy in bf16, has"].any()


def test_the_rule_in_the_kernel_is_torch_s_adamw():
    pytest.importorskip("triton", reason="Triton is there on Linux only")
    from helpers.check.week08 import fused

    for _, (given, overflow, n) in fused.blocks():
        step = 1 if n["correction1"] == 1 - n["beta1"] else 3
        twin = given["p"].clone().requires_grad_()
        twin.grad = given["g"].float() / n["scale"]
        betas = n["beta1"], n["beta2"]
        optimizer = torch.optim.AdamW([twin], n["lr"], betas, n["eps"], n["weight_decay"])
        old = {"step": torch.tensor(step - 1.0), "exp_avg": given["m"].clone(),
               "exp_avg_sq": given["v"].clone()}  # fmt: skip
        optimizer.state[twin] = old
        if not overflow:
            optimizer.step()
        right = {"p": twin.detach(), "m": old["exp_avg"], "v": old["exp_avg_sq"]}
        right["low"] = right["p"].half()
        found = fused.play_rule(fused.rule, given, overflow, n)
        for kind, numbers in right.items():
            assert found[kind] == pytest.approx(numbers.tolist(), abs=1e-6), kind


@pytest.mark.usefixtures("shared_ranks")
def test_loss_scaling_by_hand():
    """From (1, -2, 0.5), minus half of the sums; (3, 4, 12) is divided by 13, and 120 by 120."""
    found = {}
    for case in precision.scaled_step.asked():
        trace = precision.scaled_step.expected(case)
        last = max(int(facet.split()[1][:-1]) for facet in trace if facet.startswith("step"))
        copies = trace[f"step {last}: the master copy"]
        assert len(set(copies)) == 1
        found[case.arguments[1]["lr"], len(found)] = (copies[0], trace[f"step {last}: the scaler"])
    masters = [master for master, _ in found.values()]
    assert masters[0] == pytest.approx([1 - 0.125 - 0.0625 - 0.125, -2.0, 0.25])
    assert masters[1] == pytest.approx(
        [1 - 5e-7 * 2**18, -2 + 7e-7 * 2**18, 0.5 - 1e-6 * 2**18], rel=1e-3
    )
    assert masters[2] == pytest.approx([0.5625, -2.375, 0.25])
    assert masters[3] == pytest.approx([0.625 - 1.5 / 13, -2.125 - 2 / 13, 0.625 - 6 / 13])
    assert masters[4:] == [(0.75, -2.0, 0.25), (0.125, -2.0, 0.5)]
    scales = [scalers[0]["scale"] for _, scalers in found.values()]
    assert scales == [2048, 2048, 1024, 2048, 512, 2048]


@pytest.mark.usefixtures("shared_ranks")
def test_another_way_to_make_a_step_passes():
    """A norm that is never 0, a factor where it is needed, and a copy."""

    def solve(worker, master, gradient, scaler, lr, max_norm):
        assert gradient.dtype is torch.float16
        total = gradient.to(torch.float32, copy=True)
        dist.all_reduce(total)
        overflow = bool((~total.isfinite()).any())
        if overflow:
            scaler.update(scale=scaler["scale"] * scaler["backoff"], good_steps=0)
            return overflow
        total *= 1 / scaler["scale"]
        if total.norm() > max_norm:
            total *= max_norm / total.norm()
        master.copy_(master - lr * total)
        good = scaler["good_steps"] + 1
        full = good >= scaler["interval"]
        scaler["good_steps"] = 0 if full else good
        scaler["scale"] *= scaler["growth"] if full else 1
        return overflow

    verdict = check.scaled_step(solve)
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks", "no_hints")
@pytest.mark.parametrize("scale", [0.0, NAN, "1", None])
def test_a_scale_that_cannot_be_used_ends_the_run(scale):
    def solve(worker, master, gradient, scaler, *numbers):
        answer = week08.scaled_step(worker, master, gradient, scaler, *numbers)
        scaler["scale"] = scale
        return answer

    verdict = check.scaled_step(solve)
    assert "step 1: the scaler of rank 0" in verdict.finding


def rounded_up(count: int, share: float):
    """An answer where so many of 20,000 equal numbers are rounded up."""

    def solve(x, generator):
        answer = torch.full_like(x, 1.0)
        answer[:count] += 2.0**-7
        return answer.bfloat16()

    x = torch.full((precision.MANY,), 1.0 + share * 2.0**-7)
    trace = precision.play_rounding(solve, x, 3)
    return trace, precision.play_rounding(precision.by_bits, x, 3)


def test_five_standard_errors_are_far():
    """The root of 20,000 · 1/4 · 3/4 is 61.2: 306 are within five of it, 307 are not."""
    for count in (5000, 5000 - 306, 5000 + 306):
        precision.judge_rounding(*rounded_up(count, 0.25), None, 3)
    for count in (5000 - 307, 5000 + 307):
        with pytest.raises(precision.NotRight, match="up, and should be 25"):
            precision.judge_rounding(*rounded_up(count, 0.25), None, 3)


def test_a_small_bias_is_found():
    """Three of a hundred numbers too many are rounded up."""
    biased = precision.Edit("low, high = 0, 2**16", "low, high = 2000, 2**16")
    verdict = check.round_stochastically(biased.of(precision.by_bits))
    assert "were rounded up, and should be" in verdict.finding


def test_noise_in_value_passes_as_well_as_noise_in_bits():
    def solve(x, generator):
        below = (x.view(torch.int32) & -(2**16)).view(torch.float32)
        above = ((x.view(torch.int32) & -(2**16)) + 2**16).view(torch.float32)
        up = torch.rand(x.shape, generator=generator) < (x - below) / (above - below)
        return torch.where(up, above, below).bfloat16()

    verdict = check.round_stochastically(solve)
    assert verdict, verdict


@pytest.mark.parametrize("stage", range(4))
def test_bytes_are_the_paper_s(stage):
    """Rajbhandari et al. 2020, section 3.1: 2 + 2 + 12."""
    found = precision.state_bytes(6400, 64, stage, 2, True, 4)
    paper = zero_memory(6400, 64, stage).by_kind()
    assert found["parameters"] == paper["parameters"]
    assert found["gradients"] == paper["gradients"]
    assert found["master copy"] + found["moments"] == paper["optimizer"]
