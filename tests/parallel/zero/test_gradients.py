"""Gradients of several micro-batches: which are there, and in which dtype they are added."""

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import DirectTransport
from helpers.data.batch import random_batch
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.gradients import Freed, Kept, Pool
from helpers.parallel.zero.row import Row
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from tests.parallel.beside import ODD, apart
from tests.parallel.zero.beside import Late

pytestmark = pytest.mark.usefixtures("kept_ranks")


def added(worker):
    """256, and eight times 1, in bf16 on each rank."""
    transport = DirectTransport()
    p = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
    row = Row({"p": 5}, worker.world_size)
    pool = Pool(transport, row.size)
    gradients = Freed(row, {"p": p}, transport, pool, torch.float32)
    dtypes = []
    for value in [256.0, *8 * [1.0]]:
        p.grad = torch.full_like(p, value)
        gradients.take("p")
        gradients.send()
        gradients.finish()
        dtypes.append(gradients.shard.dtype)
    return gradients.result()[: 5 - 3 * worker.rank], dtypes


def test_micro_batches_are_added_in_the_wide_dtype():
    """bf16 has 8 significant bits: 512 + 2 is 512."""
    for shard, dtypes in launch(added, 2, device="cpu"):
        assert shard.tolist() == [528.0] * len(shard)
        assert dtypes == [torch.bfloat16] + 8 * [torch.float32]


def test_micro_batches_add_up_in_the_row_itself():
    """A gradient of its own beside the row would double stage 1's memory of gradients."""
    p = torch.nn.Parameter(torch.ones(3))
    kept = Kept(Row({"p": 3}, 2), {"p": p}, Late())
    for taken in range(2):
        (2 * p).sum().backward()
        written = kept.whole._version
        kept.take("p")
        assert p.grad.data_ptr() == kept.whole.data_ptr()
        assert (kept.whole._version > written) == (taken == 0)  # later ones are there already
    assert kept.whole.tolist() == [4, 4, 4, 0]  # the padding adds nothing


def test_a_step_that_failed_has_no_message_under_way():
    """It would arrive in the next step's gradients."""
    transport, row = Late(rank=1), Row({"p": 3, "q": 1}, 2)
    held = {"p": torch.nn.Parameter(torch.ones(3)), "q": torch.nn.Parameter(torch.ones(1))}
    kept = Kept(row, held, transport)
    freed = Freed(row, held, transport, Pool(transport, 4), torch.float32)
    for gradients in (kept, freed):
        for step in range(3):
            gradients.begin()
            assert not transport.under_way
            assert not gradients.sent
            for name, p in held.items():
                p.grad = torch.arange(p.numel()) + 3.0 + step
                gradients.take(name)
            gradients.send()
            assert gradients.sent
            assert transport.under_way == 1
            sizes = [buffer.numel() for buffer in gradients.buffers]
            assert sizes == ([4] if gradients is kept else [4, 2])  # the sum arrives beside the row
        gradients.finish()
        assert gradients.result().tolist() == [7.0, 5.0]  # of the last step alone
        assert not transport.under_way
    assert freed.buffers == []  # the shard is handed over


def test_a_micro_batch_may_add_to_a_gradient_twice_or_leave_it_out():
    """A tied parameter of two stages comes twice. What does not come counts as zero."""
    transport, row = Late(rank=1), Row({"p": 2, "q": 2}, 2)
    held = {name: torch.nn.Parameter(torch.ones(2)) for name in row.sizes}
    freed = Freed(row, held, transport, Pool(transport, 4), torch.float64)
    for came in ("qpq", "p"):
        for name in came:
            held[name].grad = torch.tensor([5.0, 7.0])
            freed.take(name)
            assert held[name].grad is None
        freed.whole[2:].add_(0.0 if "q" in came else 100.0)  # what was in the memory before
        freed.send()
        freed.finish()
    assert freed.sent == 2
    assert freed.shard.dtype == torch.float64
    assert freed.result().tolist() == [10.0, 14.0]


def test_a_step_that_failed_keeps_no_memory():
    """It had filled a row, and did not send it."""
    p = torch.nn.Parameter(torch.ones(3))
    freed = Freed(Row({"p": 3}, 2), {"p": p}, Late(), Pool(Late(), 4), torch.float32)
    p.grad = torch.ones(3)
    freed.take("p")
    assert [buffer.numel() for buffer in freed.buffers] == [4]
    freed.begin()
    assert not freed.buffers


class Lasting(Late):
    """Its memory is never freed, so each buffer must be given back."""

    lasting = True


def test_a_row_is_given_back_when_it_has_arrived_and_after_a_step_that_failed():
    transport, p = Lasting(), torch.nn.Parameter(torch.ones(3))
    pool = Pool(transport, largest=6)
    freed = Freed(Row({"p": 3}, 2), {"p": p}, transport, pool, torch.float32)
    for arrives in (True, True, False, True):
        freed.begin()
        p.grad = torch.ones(3)
        freed.take("p")
        assert [buffer.numel() for buffer in pool.buffers] == [6]
        if arrives:
            freed.send()
            freed.finish()
            assert not pool.lent


def sometimes(config, seed, seat, dtype):
    """`up` gets a gradient only from micro-batches of two sequences."""
    placed = plain(config, seed, seat, dtype)
    model = placed.model
    mlp = model.blocks["0"].mlp

    def forward(x):
        y = torch.nn.functional.silu(mlp.gate(x))
        return mlp.down(y * mlp.up(x) if len(x) == 2 else y)

    mlp.forward = forward
    return placed


def beside_local(worker, owners):
    """How far each owner is from the plain owner, which sums gradients after the backward."""
    torch.set_num_threads(1)
    mesh, given = make_mesh(Layout(dp=worker.world_size)), {"dtype": torch.float64}
    recipes = [Recipe(transform=sometimes)]
    recipes += [Recipe(transform=sometimes, owner=owner) for owner in owners]
    trainers = [recipe(ODD, 0, mesh, micro_batches=2, **given) for recipe in recipes]
    for k in range(2):
        batch = random_batch(k, 6, ODD.context, ODD.vocab)
        for trainer in trainers:  # each rank has micro-batches of two sequences and of one
            trainer.step(batch.shard(trainer.data_rank, trainer.data_size))
    first, *others = [trainer.full_state()["model"] for trainer in trainers]
    return [apart(state, first) for state in others]


def test_a_parameter_that_only_one_micro_batch_uses():
    for worst in launch(beside_local, 2, device="cpu", owners=[Zero1, Zero2, Zero3]):
        assert max(worst) < 1e-12


class Own:
    """The memory of a transport; `made` lists its buffers."""

    def __init__(self, lasting):
        self.lasting, self.made = lasting, []

    def empty(self, numel, dtype, device):
        self.made.append(torch.zeros(numel, dtype=dtype, device=device))
        return self.made[-1]


def test_a_lasting_buffer_is_lent_to_the_next_row_whatever_its_size():
    transport = Own(lasting=True)
    pool = Pool(transport, largest=8)
    for numel in (3, 8, 1):
        row = pool.take(numel, torch.float32, "cpu")
        assert row.shape == (numel,)
        assert [buffer.numel() for buffer in pool.buffers] == [8]
        pool.give(row)
    one, two = (pool.take(5, torch.float32, "cpu") for _ in range(2))
    assert one.data_ptr() != two.data_ptr()
    assert [buffer.numel() for buffer in transport.made] == [8, 8]
    other = pool.take(5, torch.float64, "cpu")
    assert other.dtype == torch.float64
    pool.give(other)
    assert pool.take(2, torch.float64, "cpu").data_ptr() == other.data_ptr()
    pool.give(one)
    pool.give(two)
    assert len(pool.buffers) == 3
    assert pool.take(2, torch.float64, "cpu").data_ptr() != other.data_ptr()  # it is lent


def test_ordinary_memory_is_as_large_as_the_row_and_not_kept():
    transport = Own(lasting=False)
    pool = Pool(transport, largest=8)
    row = pool.take(3, torch.float32, "cpu")
    assert row is transport.made[0]
    assert row.numel() == 3
    pool.give(row)
    assert pool.buffers == []
