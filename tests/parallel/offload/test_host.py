"""The way to the host: what is sent, and how often. That it equals one process: test_strategies."""

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.parallel.offload.host import OnHost
from helpers.parallel.offload.link import Link
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from tests.parallel.beside import ODD

NUMBERS = 33 * 12 + 2 * (4 * 12 * 12 + 3 * 12 * 32 + 2 * 12) + 12


def sent(worker, owner, precision, micro_batches):
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size)) if worker.world_size > 1 else None
    trained = Recipe(owner=owner, precision=precision)(ODD, mesh=mesh, micro_batches=micro_batches)
    link, counts = trained.precision.link, []
    for k in range(3):
        counts.append((link.to_host, link.to_device))
        batch = random_batch(k, 4, ODD.context, ODD.vocab)
        trained.step(batch.shard(trained.data_rank, trained.data_size))
    own = sum(m.numel() for m in trained.owner.masters.values())
    trained.close()
    return own, counts


@pytest.mark.usefixtures("kept_ranks")
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize(
    ("owner", "ranks", "precision", "size"),
    [
        (Local, 1, Mixed(), 2),  # 2 bytes of each gradient, and of each parameter
        (Local, 1, Plain(), 4),
        (Zero1, 2, Mixed(), 2),  # of this rank's shard
        (Zero3, 3, Mixed(), 2),
    ],
    ids=["bf16", "fp32", "ZeRO 1", "ZeRO 3"],
)
def test_a_step_sends_each_gradient_there_and_each_parameter_back(
    owner, ranks, precision, size, micro_batches
):
    given = {"owner": owner, "precision": OnHost(precision), "micro_batches": micro_batches}
    shares = []
    for own, counts in launch(sent, ranks, device="cpu", **given):
        # the sums of several micro-batches are in the format of the master copies
        wide = 4 if owner is Zero3 and micro_batches > 1 else size
        assert counts == [(k * wide * own, (k + 1) * size * own) for k in range(3)]
        shares.append(own)
    assert sum(shares) >= NUMBERS


def test_each_trainer_counts_by_itself_and_copies_are_copies():
    precision = OnHost(Mixed())
    one, other = (Recipe(precision=precision)(ODD) for _ in range(2))
    before = other.precision.link.to_host
    one.step(random_batch(0, 2, ODD.context, ODD.vocab))
    assert (precision.link.to_host, other.precision.link.to_host) == (0, before)
    link, tensor = Link(), torch.ones(3, dtype=torch.bfloat16)
    copy = link.down(tensor)
    link.up(torch.full((3,), 2.0), tensor)
    assert (copy.tolist(), tensor.tolist()) == ([1, 1, 1], [2, 2, 2])
    assert (link.to_host, link.to_device) == (6, 6)
    link.wait_on_host(), link.wait_on_device()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_copies_are_pinned_and_on_a_stream_of_their_own():
    link = Link()
    tensor = torch.randn(2**20, device="cuda")
    copy = link.down(tensor * 2)
    link.wait_on_host()
    assert copy.is_pinned()
    assert torch.equal(copy, tensor.cpu() * 2)
    low = torch.zeros(2**20, device="cuda", dtype=torch.bfloat16)
    link.up(copy, low)
    link.wait_on_device()
    assert torch.equal((low + 0).cpu(), copy.bfloat16())
    assert link.streams.keys() == {tensor.device}
