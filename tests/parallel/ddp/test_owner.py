"""The owner of replicas: what it says of itself, and leaves behind; the strategy's arguments."""

import threading
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import GroupTransport, SharedTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.after_backward import BucketedDDP, NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed
from helpers.parallel.trainer import Recipe
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")
TINY = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2)


def trained(worker, **options):
    """(lossy, bound) of a strategy that made a step. It leaves no thread and no hold behind."""
    mesh, threads = make_mesh(Layout(dp=worker.world_size)), threading.active_count()
    trainer = Recipe(owner=partial(Replicated, **options))(TINY, 0, mesh)
    trainer.step(random_batch(worker.rank, 2, 4, 16))
    trainer.close()
    assert threading.active_count() == threads
    DDP(trainer.model).close()  # the model can be wrapped again
    return trainer.lossy, trainer.bound


@pytest.mark.parametrize("transport", [GroupTransport, SharedTransport])
@pytest.mark.parametrize("replica", [NaiveDDP, BucketedDDP, DDP])
def test_a_closed_strategy_leaves_nothing_behind(replica, transport):
    options = {"replica": replica, "transport": transport}
    assert list(launch(trained, 2, device="cpu", **options)) == [("", 0.0)] * 2


@pytest.mark.parametrize(
    ("dtype", "said"),
    [(torch.bfloat16, ("gradients are sent as torch.bfloat16", 0.1)), (torch.float32, ("", 0.0))],
)
def test_gradients_that_are_sent_in_fewer_bits_are_lossy(dtype, said):
    assert list(launch(trained, 2, device="cpu", message_dtype=dtype)) == [said] * 2


def seams(worker, seed, **options):
    """What DataParallel makes of its arguments, and the first number of its first parameter."""
    mesh = make_mesh(Layout(dp=worker.world_size))
    trainer = DataParallel(TINY, seed, mesh, device="cpu", **options)
    owner = trainer.owner
    found = {
        "types": (type(owner.replica), type(owner.replica.transport)),
        "buckets": len(getattr(owner.replica, "buckets", ())),
        "precision": trainer.precision,
        "rule": trainer.rule,
        "micro_batches": trainer.micro_batches,
        "dtype": next(iter(owner.masters.values())).dtype,
        "first": float(next(iter(trainer.parameters.values())).detach().flatten()[0]),
    }
    trainer.close()
    return found


def test_it_passes_its_arguments_on():
    rule, precision = OptimizerConfig(lr=0.5), Mixed(torch.bfloat16)
    options = {"replica": BucketedDDP, "transport": SharedTransport, "precision": precision,
               "micro_batches": 3, "bucket_cap_mb": 300 / 2**20, "optimizer": rule,
               "dtype": torch.float64}  # fmt: skip
    for run in launch(seams, 2, device="cpu", seed=1, **options):
        assert run["types"] == (BucketedDDP, SharedTransport)
        assert run["buckets"] > 3  # a parameter of 8 x 8 numbers in 16 bits has 128 bytes
        assert run["precision"] == precision
        assert run["rule"] is not None
        assert (run["rule"].lr, run["micro_batches"]) == (0.5, 3)
        assert run["dtype"] == torch.float64
