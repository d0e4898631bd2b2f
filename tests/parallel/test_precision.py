"""Mixed precision in every strategy: exact in fp64, near in 16 bits, skipped by all ranks."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.measure.memory import bytes_of
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.offload.host import OnHost
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import EmulatedFp8, Mixed, Plain
from helpers.parallel.single import Single
from helpers.parallel.tensor.layers import RowParallel
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules import one_f_one_b
from helpers.plans.schedules.zero_bubble import zero_bubble_h1
from helpers.precision.scaling import LossScale
from helpers.runtime.launch import launch

CONFIG = GPTConfig(vocab=33, context=8, width=16, layers=2, heads=2)
RULE = OptimizerConfig(eps=1e-4)  # see helpers.parallel.precision.BOUNDS
STEPS = 8
TWO = LossScale(scale=2.0**12, interval=2)
HIGH = LossScale(scale=2.0**22)  # overflows at first, so steps are skipped
LAYOUTS = {
    "replicated": Recipe(layout=Layout(dp=4), owner=Replicated),
    "1, tensor": Recipe(layout=Layout(dp=2, tp=2), owner=Zero1),
    "2, pipeline": Recipe(layout=Layout(pp=2, dp=2), schedule=one_f_one_b, owner=Zero2),
    "3": Recipe(layout=Layout(dp=4), owner=Zero3),
    "zero bubble": Recipe(layout=Layout(pp=2, tp=2), schedule=zero_bubble_h1),
}
pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")


def batch_of(k: int):
    return replace(random_batch(k, 8, 8, 33, ignored=0.1), step=k)


# bf16 is fp16 without a scale: each layout's bookkeeping shows in fp16 and in fp64
PRECISIONS = {
    "fp64": (Mixed(torch.float64, scale=TWO), torch.float64),
    "bf16": (Mixed(torch.bfloat16), torch.float32),
    "fp16": (Mixed(torch.float16, scale=HIGH), torch.float32),
}
RUNS = {(layout, name) for layout in LAYOUTS for name in ("fp64", "fp16")} | {("3", "bf16")}


def trained(worker) -> dict:
    """Train each layout in some precisions: its skipped steps, scales, and last state."""
    torch.set_num_threads(1)
    found = {}
    for layout, recipe in LAYOUTS.items():
        mesh = make_mesh(recipe.layout)
        for name, (precision, dtype) in PRECISIONS.items():
            if (layout, name) not in RUNS:
                continue
            seams = {"dtype": dtype, "optimizer": RULE, "micro_batches": 2}
            trainer = replace(recipe, precision=precision)(CONFIG, 0, mesh, **seams)
            skipped, scales = [], []
            for k in range(STEPS):
                step = trainer.step(batch_of(k).shard(trainer.data_rank, trainer.data_size))
                skipped.append(step.skipped)
                scales.append(trainer.precision.loss_scale)
            state = trainer.full_state()
            found[layout, name] = {"skipped": skipped, "scales": scales, "state": state}
            trainer.close()
    return found


@pytest.fixture(scope="module")
def runs():
    return launch(trained, 4, device="cpu")


@cache
def alone(dtype, steps) -> dict:
    """The parameters of one process, trained on these steps."""
    torch.set_num_threads(1)
    twin = Single(CONFIG, 0, dtype=dtype, optimizer=RULE)
    for k in steps:
        twin.step(batch_of(k))
    return twin.full_state()["model"]


def length(state: dict) -> float:
    return sum(float(value.double().square().sum()) for value in state.values()) ** 0.5


def minus(a: dict, b: dict) -> dict:
    return {name: a[name].double() - b[name].double() for name in a}


def test_in_fp64_every_strategy_is_exact_with_a_changing_scale(runs):
    """Nothing is rounded, so any difference would be an error in scaling or in bookkeeping."""
    plain = alone(torch.float64, tuple(range(STEPS)))
    scales = [2.0**k for k in (12, 13, 13, 14, 14, 15, 15, 16)]
    for run in runs:
        for layout in LAYOUTS:
            found = run[layout, "fp64"]
            assert found["scales"] == scales, layout
            assert found["state"]["precision"] == {"scale": 2.0**16, "good_steps": 0}
            for key, value in plain.items():
                torch.testing.assert_close(found["state"]["model"][key], value, rtol=0, atol=1e-12)
    assert TWO.scale == 2.0**12  # each Trainer has its own copy


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_skips_the_same_steps(runs, layout):
    """All ranks, whatever part of the model and of the batch they hold."""
    found = [run[layout, "fp16"] for run in runs]
    skipped, scales = found[0]["skipped"], found[0]["scales"]
    assert all(run["skipped"] == skipped and run["scales"] == scales for run in found)
    assert 2 <= sum(skipped) <= 6
    assert skipped[0]
    assert not skipped[-1]
    assert scales[-1] == 2.0 ** (22 - sum(skipped))


@pytest.mark.parametrize(("layout", "name"), sorted(RUNS - {(one, "fp64") for one in LAYOUTS}))
def test_in_16_bits_every_strategy_stays_within_its_bound(runs, layout, name):
    """The distance from one process in fp32, over that process's movement."""
    found, bound = [run[layout, name] for run in runs], PRECISIONS[name][0].bound
    done = tuple(k for k, skip in enumerate(found[0]["skipped"]) if not skip)
    assert len(done) == STEPS or name == "fp16"
    start, twin = (alone(torch.float32, steps) for steps in ((), done))
    for run in found:
        distance = length(minus(run["state"]["model"], twin)) / length(minus(twin, start))
        assert 1e-4 < distance < bound <= 0.1


def test_clipping_uses_the_true_gradients():
    trainers = [
        Recipe(precision=precision)(CONFIG, 0, dtype=torch.float64, optimizer=RULE)
        for precision in (Plain(), Mixed(torch.float64, scale=LossScale(scale=2.0**20)))
    ]
    plain, scaled = (trainer.step(batch_of(0)) for trainer in trainers)
    assert scaled.grad_norm.item() == pytest.approx(plain.grad_norm.item(), rel=1e-12)
    assert scaled.loss.item() == pytest.approx(plain.loss.item(), rel=1e-12)
    for name, gradient in trainers[0].full_gradients().items():
        torch.testing.assert_close(
            trainers[1].full_gradients()[name], gradient, rtol=1e-12, atol=1e-15
        )


def test_bytes_by_kind():
    """For each parameter: 2 + 2 + 12 after the backward. The update needs fp32 gradients: 4."""
    seen = []

    class Watched(Mixed):
        def collect(self, values, masters):
            seen.append(bytes_of([value.grad for value in values.values()]))
            super().collect(values, masters)

    trainer = Recipe(precision=Watched())(CONFIG, 0, optimizer=RULE)
    trainer.step(batch_of(0))
    count = sum(p.numel() for p in trainer.parameters.values())
    held = {kind: nbytes / count for (kind, _), nbytes in trainer.held().items()}
    assert seen == [2 * count]
    assert held.pop("optimizer") == pytest.approx(8, abs=0.1)  # and AdamW's counts of steps
    assert held == {"parameters": 2, "master copies": 4, "gradients": 4}


def test_a_loss_scale_saves_small_gradients_in_float16():
    """With a loss of a millionth, fp16's gradients are zero; with a scale, they are not."""
    found = {}
    for scale in (1.0, 2.0**20):
        precision = Mixed(torch.float16, scale=LossScale(scale=scale))
        trainer = Recipe(precision=precision)(CONFIG, 0, optimizer=replace(RULE, clip=None))
        right = trainer.model.loss
        trainer.model.loss = lambda batch, right=right: tuple(v * 1e-6 for v in right(batch))
        trainer.step(batch_of(0))
        gradients = trainer.full_gradients().values()
        found[scale] = sum(int((g != 0).sum()) for g in gradients) / sum(
            g.numel() for g in gradients
        )
    assert found[1.0] < 0.5 < 0.9 < found[2.0**20]


def test_master_copies_train_what_their_parameters_train():
    values = {n: torch.ones(2, requires_grad=n == "trained").bfloat16() for n in ("a", "trained")}
    values = {n: v.detach().requires_grad_(n == "trained") for n, v in values.items()}
    masters = Mixed().masters(values, torch.float32)
    assert {n: m.requires_grad for n, m in masters.items()} == {"a": False, "trained": True}
    values["trained"].grad = torch.full((2,), 3.0).bfloat16()
    Mixed(scale=LossScale(scale=4.0)).collect(values, masters)
    assert masters["trained"].grad.tolist() == [0.75, 0.75]
    bucket = torch.full((2,), 3.0, dtype=torch.float64)  # memory for messages
    values = {"p": torch.ones(2, dtype=torch.float64, requires_grad=True)}
    masters |= (exact := Mixed(torch.float64, LossScale(scale=4.0))).masters(values, torch.float64)
    values["p"].grad = bucket
    exact.collect(values, {"p": masters["p"]})
    assert (masters["p"].grad.tolist(), bucket.tolist()) == ([0.75, 0.75], [3.0, 3.0])
    assert masters["a"].grad is None


@pytest.mark.parametrize(("norm", "skips"), [(3.0, False), (math.inf, True), (math.nan, True)])
def test_an_update_is_skipped_for_any_norm_that_is_not_finite(norm, skips):
    assert Mixed().skips(norm) is skips
    assert not Plain().skips(norm)


FP8 = "emulated fp8: its products round their inputs to 8 bits, and it computes in torch.bfloat16"


def test_what_each_precision_says_of_itself():
    scaled = Mixed(torch.float16, scale=LossScale(scale=8.0))
    said = [
        (Plain(), "", 0.0, 1.0, torch.float32),
        (Mixed(torch.float64), "", 0.0, 1.0, torch.float64),
        (Mixed(), "it computes in torch.bfloat16", 0.1, 1.0, torch.bfloat16),
        (scaled, "it computes in torch.float16", 0.033, 8.0, torch.float16),
        (EmulatedFp8(), FP8, 0.5, 1.0, torch.bfloat16),
        (OnHost(), "", 0.0, 1.0, torch.float32),
        (OnHost(Mixed()), "it computes in torch.bfloat16", 0.1, 1.0, torch.bfloat16),
    ]
    for one, lossy, bound, scale, dtype in said:
        assert (one.lossy, one.bound, one.loss_scale) == (lossy, bound, scale)
        assert one.computes_in(torch.float32) == dtype
        assert one.state() == (scaled.scale.state() if one is scaled else {})
    assert scaled.start().scale is not scaled.scale
    hosted = OnHost(scaled).start()
    assert hosted.inner.scale is not scaled.scale
    assert hosted.state() == scaled.state()


def test_what_fp8_cannot_round_is_refused():
    with pytest.raises(ValueError, match="use a layout without tp"):
        EmulatedFp8().prepare(RowParallel(torch.nn.Linear(2, 2), None))


def test_float16_without_a_scale_is_refused():
    with pytest.raises(ValueError, match=r"Mixed\(torch.float16, scale=LossScale\(\)\)"):
        Mixed(torch.float16)


@pytest.mark.parametrize("precision", [Mixed(), EmulatedFp8()], ids=["bf16", "fp8"])
def test_training_in_few_bits_follows_fp32(precision):
    """The loss of one batch falls to the same value; on many batches, the bound holds."""
    fast = replace(RULE, lr=1e-2)
    plain, low = (Recipe(precision=p)(CONFIG, 0, optimizer=fast) for p in (Plain(), precision))
    for k in range(20):
        theirs, ours = plain.step(batch_of(0)).loss.item(), low.step(batch_of(0)).loss.item()
        if not k:
            first = ours
    assert ours < first - 1
    assert ours == pytest.approx(theirs, abs=0.1)
    low = Recipe(precision=precision)(CONFIG, 0, optimizer=RULE)
    start, twin = (alone(torch.float32, steps) for steps in ((), tuple(range(8))))
    for k in range(8):
        low.step(batch_of(k))
    distance = length(minus(low.full_state()["model"], twin)) / length(minus(twin, start))
    least = 0.1 if isinstance(precision, EmulatedFp8) else 1e-3  # it does round
    assert least < distance < low.bound == precision.bound < 1
    assert ("emulated fp8" in low.lossy) == isinstance(precision, EmulatedFp8)
