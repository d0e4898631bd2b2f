"""The owner of replicas: what it says of low-precision messages, and what it leaves behind."""

import threading
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import GroupTransport, SharedTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.precision import Mixed
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.runtime.launch import launch
from tests.parallel.zero.beside import Case, far

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


def test_gradients_are_summed_over_replicas_and_over_other_axes_once():
    """With parameters of which each rank of tp has a part of the gradient, and master copies."""
    recipe = Recipe(
        owner=partial(Replicated, bucket_cap_mb=0.005, transport=SharedTransport),
        transform=sequence_parallel,
        precision=Mixed(torch.float64),
    )
    case = Case(recipe, layout={"dp": 2, "tp": 2}, micro_batches=2)
    for run in launch(far, 4, device="cpu", cases={"sequence": case}):
        assert run["sequence"] <= 1e-12


@pytest.mark.parametrize(
    ("dtype", "said"),
    [(torch.bfloat16, ("gradients are sent as torch.bfloat16", 0.1)), (torch.float32, ("", 0.0))],
)
def test_gradients_that_are_sent_in_fewer_bits_are_lossy(dtype, said):
    assert list(launch(trained, 2, device="cpu", message_dtype=dtype)) == [said] * 2
