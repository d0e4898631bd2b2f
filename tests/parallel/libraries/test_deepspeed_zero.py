"""DeepSpeed's stages train like one process; what they hold and send; offloading; refusals.

DeepSpeed trains in float32 only, so the sums of both sides are off by 1e-7 of their terms. SGD
passes that on as it is: the bound is 2e-6. AdamW divides by the gradient's size, and with a
learning rate of 1e-3 it makes a part of a step of it: the bound is 2e-4, as for float32 everywhere.
"""

import copy
from dataclasses import dataclass, field, replace

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.deepspeed_zero import BUCKET, DeepSpeedZero, completed
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.plans.deepspeed_config import read
from helpers.runtime.launch import launch
from helpers.training.differences import farthest

TINY = GPTConfig(vocab=33, context=8, width=20, layers=2, heads=2)
SGD = OptimizerConfig(rule="sgd", lr=0.1, clip=0.05)
BOUND = {"sgd": 2e-6, "adamw": 2e-4}
STRICT = {  # stage 3 that frees every parameter after its use, also the small ones
    "stage": 3,
    "stage3_param_persistence_threshold": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}
OWN = {"type": "AdamW", "params": {"torch_adam": True, "lr": 1e-3, "betas": [0.9, 0.95]}}


def zero(stage: int, **fields) -> dict:
    return {"zero_optimization": {"stage": stage, **fields}}


@dataclass(frozen=True)
class Case:
    settings: dict
    rule: OptimizerConfig = field(default_factory=OptimizerConfig)
    micro_batches: int = 1
    sequences: int = 5
    config: GPTConfig = TINY


EXACT = ("start", "loaded", "given out")  # copies: no rounding
HOST = {"device": "cpu", "pin_memory": False}
CASES = {
    **{f"stage {k}": Case(zero(k), SGD, micro_batches=2) for k in range(4)},
    "stage 2, to the owner": Case(zero(2, use_multi_rank_bucket_allreduce=False), SGD),
    "stage 3, freed": Case(
        {"zero_optimization": STRICT}, OptimizerConfig(clip=None), micro_batches=2
    ),
    "a rank without data": Case(zero(2), SGD, sequences=1, config=replace(TINY, dropout=0.2)),
    "tied, its optimizer": Case(zero(1) | {"optimizer": OWN}, config=replace(TINY, tied=True)),
    "stage 3, offloaded": Case(
        zero(3, offload_optimizer=HOST, offload_param=HOST), micro_batches=2
    ),
}


def train(worker, cases) -> dict:
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    found = {name: beside_one_process(mesh, case) for name, case in cases.items()}
    return {"cases": found, "bf16": in_sixteen_bits(mesh)}


def in_sixteen_bits(mesh) -> dict:
    """How far bf16 is from one process after 8 steps, relative to how far that one has moved."""
    settings = zero(2) | {"bf16": {"enabled": True}}
    ours, one = DeepSpeedZero(TINY, 0, mesh, settings=settings), Single(TINY, 0)
    first = one.full_state()["model"]
    for k in range(8):
        batch = replace(random_batch(k, 8, TINY.context, 33), step=k)
        ours.step(batch.shard(ours.data_rank, ours.data_size))
        one.step(batch)
    last, theirs = one.full_state()["model"], ours.full_state()["model"]
    norm = lambda a, b: torch.stack([(a[n] - b[n]).norm() for n in a]).norm()  # noqa: E731
    found = {"far": float(norm(theirs, last) / norm(last, first)), "bound": ours.bound}
    ours.close()
    return found | {"lossy": ours.lossy, "dtype": str(next(iter(ours.parameters.values())).dtype)}


def beside_one_process(mesh, case: Case) -> dict:
    """Two steps, a load into a new engine, and one more step; the worst differences, and bytes."""
    given = {"optimizer": case.rule, "micro_batches": case.micro_batches}
    ours = DeepSpeedZero(case.config, 3, mesh, settings=case.settings, **given)
    one = Single(case.config, 3, optimizer=case.rule)
    given_out = []  # (tensors that the engine returned or loaded, as they were then)
    found = {"start": apart(ours.full_state()["model"], one.full_state()["model"])}
    for k in range(3):
        if k == 2:
            saved = ours.full_state()
            given_out.append((flat(saved), copy.deepcopy(flat(saved))))
            ours.close()
            ours = DeepSpeedZero(case.config, 3, mesh, settings=case.settings, **given)
            ours.load(saved)
            found["loaded"] = apart(flat(ours.full_state()), flat(saved))
        batch = random_batch(k, case.sequences, case.config.context, 33, ignored=0.2)
        own = replace(batch, step=k).shard(ours.data_rank, ours.data_size)
        lr = {0: 0.0, 1: 0.02}.get(k) if case.rule is SGD else None
        with ledger() as log:
            mine = ours.step(own, lr=lr)
        if k == 1:  # in its first step, stage 3 learns the order of the layers
            sent = {row["call"]: row["wire"] for row in log.rows()}
        theirs = one.step(replace(batch, step=k), lr=lr)
        found[f"loss {k}"] = abs(float(mine.loss) - float(theirs.loss))
        found[f"norm {k}"] = abs(float(mine.grad_norm) - float(theirs.grad_norm))
        gradients, state = ours.full_gradients(), flat(ours.full_state())
        found[f"gradients {k}"] = apart(gradients, one.full_gradients())
        found[f"state {k}"] = apart(state, flat(one.full_state()))
        given_out += [(own, copy.deepcopy(own)) for own in (gradients, state)]
    found["given out"] = max(apart(*pair) for pair in given_out)
    sums = ours.evaluate(own)
    found["evaluation"] = abs(sums[0] - one.evaluate(batch)[0]) / sums[1]
    held = {kind: size for (kind, _), size in ours.held().items()}
    params = sum(value.numel() for value in saved["model"].values())
    whole = {n: p.numel() for n, p in ours.parameters.items()}  # what is there between steps
    ours.close()
    return {"found": found, "held": held, "params": params, "whole": sum(whole.values()),
            "sent": sent}  # fmt: skip


def apart(ours, theirs) -> float:
    return farthest(ours, theirs)[0] if ours or theirs else 0.0


def flat(state) -> dict[str, torch.Tensor]:
    slots = {f"{n}.{k}": torch.as_tensor(v) for n, own in state["optimizer"].items()
             for k, v in own.items()}  # fmt: skip
    return state["model"] | slots


@pytest.fixture(scope="module")
def runs():
    return launch(train, 2, device="cpu", cases=CASES, timeout=300)


@pytest.fixture(scope="module")
def found(runs):
    return runs.column("cases")


def test_each_stage_equals_one_process(found):
    bounds = {name: BOUND[case.rule.rule] for name, case in CASES.items()}
    wrong = {
        (rank, name, what): value
        for rank, run in enumerate(found)
        for name, result in run.items()
        for what, value in result["found"].items()
        if not value <= (0.0 if what in EXACT else bounds[name])
    }
    assert wrong == {}
    assert all(run.keys() == CASES.keys() for run in found)


@pytest.mark.parametrize("stage", range(4))
def test_it_holds_what_the_reading_of_the_settings_says(found, stage):
    """Gradients are there between steps in stage 3 alone, as one buffer; so they are left out."""
    result = found[0][f"stage {stage}"]
    reading = read(zero(stage) | {"train_micro_batch_size_per_gpu": 1}, ranks=2)
    states, held = reading.states(result["params"]), result["held"]
    momentum = 4 * result["params"] // (2 if stage else 1)  # SGD keeps one number, AdamW two
    assert held["parameters"] == states.parameters
    assert held.get("optimizer", 0) == momentum
    assert held.get("master copies", 0) == states.optimizer - 2 * momentum
    assert held.get("gradients", 0) == (states.gradients if stage == 3 else 0)


def test_stage_3_keeps_small_parameters_whole_unless_told(found):
    """After a step the small model is whole on every rank; with threshold 0 only the shards are."""
    kept, freed = found[0]["stage 3"], found[0]["stage 3, freed"]
    assert kept["whole"] == kept["params"]
    assert freed["whole"] == 0


def test_what_a_step_sends(found):
    """Bytes per P numbers of 4 bytes, N = 2: in a ring an all-reduce sends 4 P, a gather 2 P.

    By default stages 1 and 2 send every gradient to every rank; the ZeRO paper's reduce-scatter
    would send half of it. gloo has no reduce-scatter of its own: it makes an all-reduce.
    """
    share = {
        name: {call: wire / (4 * run["params"]) for call, wire in run["sent"].items()}
        for name, run in found[0].items()
    }
    about = lambda value: pytest.approx(value, abs=0.01)  # noqa: E731, padding, norms, counts
    few = {"all_reduce": about(0)}
    assert share["stage 0"] == {"all_reduce": about(1)}
    assert share["stage 1"] == {"all_reduce": about(1), "all_gather": about(1 / 2)}
    assert share["stage 2"] == {"all_reduce": about(2), "all_gather": about(1 / 2)}  # m = 2
    assert share["stage 3"] == few | {"reduce_scatter": about(2), "all_gather": about(1 / 2)}
    owner = share["stage 2, to the owner"]
    assert owner == few | {"reduce": owner["reduce"], "all_gather": about(1 / 2)}
    assert owner["reduce"] < 0.8
    freed = share["stage 3, freed"]  # a gather for each forward, and for each backward
    assert freed == few | {"reduce_scatter": about(2), "all_gather": freed["all_gather"]}
    assert 2 <= freed["all_gather"] < 2.2


def test_bf16_is_lossy_and_within_its_bound(runs):
    for run in runs.column("bf16"):
        assert "16 bits" in run["lossy"]
        assert run["dtype"] == "torch.bfloat16"
        assert 0.01 < run["far"] < run["bound"] < 1


def refused(worker) -> dict:
    mesh, found = make_mesh(Layout(dp=worker.world_size)), {}
    wrong = {
        "dtype": {"dtype": torch.float64},
        "micro-batches": {"settings": {"gradient_accumulation_steps": 3}},
        "clip": {"settings": {"gradient_clipping": 0.5}},
        "stage": {"settings": zero(4)},
    }
    for name, options in wrong.items():
        try:
            DeepSpeedZero(TINY, 0, mesh, **options)
        except ValueError as error:
            found[name] = str(error)
    try:
        DeepSpeedZero(TINY, 0, make_mesh(Layout(dp=1, tp=1)))
    except ValueError as error:
        found["axes"] = str(error)
    return found


def test_what_it_refuses():
    messages = launch(refused, 1, device="cpu")[0]
    assert "float64" in messages["dtype"]
    assert "gradient_accumulation_steps = 3" in messages["micro-batches"]
    assert "gradient_clipping = 0.5" in messages["clip"]
    assert "0 (none), 1, 2 and 3" in messages["stage"]
    assert "with the axes dp only" in messages["axes"]


CLIPPED = OptimizerConfig(clip=0.5)


def test_what_is_left_out_is_filled_in():
    full = completed({}, CLIPPED, 3, 2)
    assert full["gradient_accumulation_steps"] == 3
    assert full["gradient_clipping"] == 0.5
    assert full["train_micro_batch_size_per_gpu"] == 1
    assert full["zero_optimization"] == {
        "stage": 2,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
    }
    assert full["zero_allow_untested_optimizer"]
    assert not full["zero_force_ds_cpu_optimizer"]
    assert completed({}, OptimizerConfig(clip=None), 1, 0)["gradient_clipping"] == 0


def test_what_is_there_stays_and_the_caller_s_settings_too():
    given = {"zero_optimization": {"stage": 1, "reduce_bucket_size": 7}, "train_batch_size": 6}
    given |= {"zero_allow_untested_optimizer": False, "zero_force_ds_cpu_optimizer": True}
    before = copy.deepcopy(given)
    full = completed(given, CLIPPED, 3, 2)
    assert given == before
    assert full["zero_optimization"]["stage"] == 1
    assert full["zero_optimization"]["reduce_bucket_size"] == 7
    assert "train_micro_batch_size_per_gpu" not in full
    rows = {"train_micro_batch_size_per_gpu": 5}
    assert completed(rows, CLIPPED, 3, 2)["train_micro_batch_size_per_gpu"] == 5
    assert not full["zero_allow_untested_optimizer"]
    assert full["zero_force_ds_cpu_optimizer"]


@pytest.mark.parametrize(
    "given", [{"gradient_accumulation_steps": 2}, {"gradient_clipping": 0.4}], ids=str
)
def test_what_contradicts_the_arguments_is_refused(given):
    [(field, value)] = given.items()
    with pytest.raises(ValueError, match=f"{field} = {value}, and the strategy's"):
        completed(given, CLIPPED, 3, 2)
