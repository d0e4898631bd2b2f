"""DeepSpeed through Accelerate: trained, and checked for what Accelerate makes."""

from dataclasses import replace

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.parallel.libraries.accelerate_deepspeed import AccelerateDeepSpeed
from helpers.parallel.libraries.deepspeed_extension import deepspeed
from helpers.parallel.libraries.strategy import Loss
from helpers.parallel.single import Single
from helpers.runtime.launch import launch
from tests.parallel.libraries.test_deepspeed_zero import SGD, TINY, apart, flat, zero

BATCHES = [random_batch(k, 4, TINY.context, TINY.vocab, ignored=0.2) for k in range(3)]


def everything(worker) -> dict:
    """All of it in one process per rank: the imports take longer than the training."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    return {"accelerate": through(mesh), "silently": silently()}


@pytest.fixture(scope="module")
def runs():
    return launch(everything, 2, device="cpu", timeout=300)


def through(mesh) -> dict:
    found = {}
    ours = AccelerateDeepSpeed(TINY, 0, mesh, stage=3, optimizer=SGD, micro_batches=2)
    one, far = Single(TINY, 0, optimizer=SGD), []
    for k, batch in enumerate(BATCHES):
        mine = ours.step(replace(batch, step=k).shard(ours.data_rank, 2))
        theirs = one.step(replace(batch, step=k))
        far += [abs(float(mine.loss - theirs.loss)), abs(float(mine.grad_norm - theirs.grad_norm))]
        far.append(apart(ours.full_gradients(), one.full_gradients()))
        far.append(apart(flat(ours.full_state()), flat(one.full_state())))
    found["far"], found["type"] = max(far), type(ours.engine).__name__
    found["stage"] = ours.engine.zero_optimization_stage()
    ours.close()
    for name, options in {"stage 0": {"stage": 0}, "own": {"settings": {"optimizer": {}}}}.items():
        try:
            AccelerateDeepSpeed(TINY, 0, mesh, **options)
        except ValueError as error:
            found[name] = str(error)
    return found


def silently() -> dict:
    """What Accelerate makes on a CPU, and how many ranks it counts, without a word."""
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # as in a fresh process
    found, module = {}, Loss(TINY.build(torch.float32, "cpu", seed=0))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    deepspeed("cpu")
    settings = zero(2, reduce_bucket_size=1000) | {"train_micro_batch_size_per_gpu": 1}
    for cpu in (True, False):
        AcceleratorState._reset_state(reset_partial_state=True)
        plugin = DeepSpeedPlugin(hf_ds_config=settings | {"zero_allow_untested_optimizer": True})
        accelerator = Accelerator(cpu=cpu, deepspeed_plugin=plugin)
        made, _ = accelerator.prepare(module, optimizer)
        found[cpu] = (type(made).__name__, accelerator.num_processes)
    return found


def test_accelerate_trains_by_deepspeed(runs):
    for run in runs.column("accelerate"):
        assert run["type"] == "DeepSpeedEngine"
        assert run["stage"] == 3
        assert run["far"] < 2e-6
        assert "DeepSpeedZero itself" in run["stage 0"]
        assert "DeepSpeedZero itself" in run["own"]


def test_what_accelerate_makes_on_a_cpu(runs):
    for run in runs.column("silently"):
        assert run[True] == ("DistributedDataParallel", 2)
        assert run[False] == ("DeepSpeedEngine", 1)
