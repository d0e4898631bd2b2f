"""Gradients of several micro-batches: which are there, and in which dtype they are added."""

import contextlib
import threading
from collections import Counter
from dataclasses import replace
from functools import partial

import torch

from helpers.comm.direct import DirectTransport
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import SharedTransport
from helpers.data.batch import random_batch
from helpers.parallel.recipe import Recipe, plain
from helpers.parallel.zero.film import filming
from helpers.parallel.zero.gradients import Freed, Kept
from helpers.parallel.zero.pool import Pool
from helpers.parallel.zero.row import Row
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from tests.parallel.zero.beside import ODD, apart


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


class Alone:
    """The memory of a transport of two ranks. It sends nothing."""

    size, rank, lasting = 2, 0, False

    def empty(self, numel, dtype, device):
        return torch.empty(numel, dtype=dtype, device=device)


def test_micro_batches_add_up_in_the_row_itself():
    """A gradient of its own beside the row would double stage 1's memory of gradients."""
    p = torch.nn.Parameter(torch.ones(3))
    kept = Kept(Row({"p": 3}, 2), {"p": p}, Alone())
    for _ in range(2):
        (2 * p).sum().backward()
        kept.take("p")
        assert p.grad.data_ptr() == kept.whole.data_ptr()
    assert kept.whole.tolist() == [4, 4, 4, 0]  # the padding adds nothing


def test_a_step_that_failed_keeps_no_memory():
    """It had filled a row, and did not send it."""
    p = torch.nn.Parameter(torch.ones(3))
    freed = Freed(Row({"p": 3}, 2), {"p": p}, Alone(), Pool(Alone(), 4), torch.float32)
    p.grad = torch.ones(3)
    freed.take("p")
    assert [buffer.numel() for buffer in freed.buffers] == [4]
    freed.begin()
    assert not freed.buffers


def sometimes(config, seed, seat, dtype):
    """`up` gets a gradient only from micro-batches of two sequences."""
    model, parts = plain(config, seed, seat, dtype)
    mlp = model.blocks["0"].mlp

    def forward(x):
        y = torch.nn.functional.silu(mlp.gate(x))
        return mlp.down(y * mlp.up(x) if len(x) == 2 else y)

    mlp.forward = forward
    return model, parts


class Planted(RuntimeError):
    """In a forward or in a backward."""


def failing(config, seed, seat, dtype):
    """`model.fails` names where a step fails: in a block's forward, or inside its backward."""
    model, parts = plain(config, seed, seat, dtype)
    mlp, model.fails = model.blocks["0"].mlp, ""
    forward = mlp.forward

    def fail(*_):
        raise Planted

    def sometimes(x):
        y = forward(x)
        if model.fails == "forward":
            fail()
        if model.fails == "backward":
            y.register_hook(fail)
        return y

    mlp.forward = sometimes
    return model, parts


def after_failures(worker, owners):
    """(How far from the plain owner, uses of each unit in each step that did not fail) of each."""
    torch.set_num_threads(1)
    mesh, given = make_mesh(Layout(dp=worker.world_size)), {"dtype": torch.float64}
    recipes = [Recipe(transform=failing), *(Recipe(transform=failing, owner=o) for o in owners)]
    plain_one, *trainers = [recipe(ODD, 0, mesh, micro_batches=2, **given) for recipe in recipes]
    uses = [[] for _ in trainers]
    for k, fails in enumerate(["forward", "backward", ""]):
        batch = random_batch(k, 6, ODD.context, ODD.vocab)
        batch = batch.shard(plain_one.data_rank, plain_one.data_size)
        plain_one.step(batch)
        for trainer, own in zip(trainers, uses, strict=True):
            with filming(trainer.owner) as film:
                trainer.step(batch)
            own.append(Counter(e["unit"] for e in film.events if e["state"] == "in use"))
            trainer.model.fails = fails
            if fails:
                with contextlib.suppress(Planted):
                    trainer.step(batch)
                    raise AssertionError("the step did not fail")
            trainer.model.fails = ""
    wanted = plain_one.full_state()["model"]
    states = [trainer.full_state()["model"] for trainer in trainers]
    return [(apart(state, wanted), own) for state, own in zip(states, uses, strict=True)]


def test_a_step_that_failed_leaves_nothing_to_the_next():
    """Gathered units, gradients and messages under way belong to the step that failed."""
    for run in launch(after_failures, 2, device="cpu", owners=[Zero1, Zero2, Zero3]):
        for far, (first, *later) in run:
            assert far < 1e-12
            assert later == [first, first]  # a unit that is used is waited for


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


class Counting(DirectTransport):
    """Count the reduce-scatters that are running at one time."""

    def __init__(self, group):
        super().__init__(group)
        self.running = self.most = 0

    def reduce_scatter(self, own, every):
        self.running += 1
        self.most = max(self.most, self.running)
        return Counted(super().reduce_scatter(own, every), self)


class Counted:
    def __init__(self, work, transport):
        self.work, self.transport = work, transport

    def wait(self):
        self.work.wait()
        self.transport.running -= 1


def running(worker, owners):
    torch.set_num_threads(1)
    mesh, found = make_mesh(Layout(dp=worker.world_size)), []
    for owner in owners:
        recipe = Recipe(owner=partial(owner, transport=Counting))
        trainer = recipe(replace(ODD, layers=3, tied=False), 0, mesh)
        trainer.step(random_batch(worker.rank, 2, 8, ODD.vocab))
        found.append((trainer.owner.transport.most, trainer.owner.transport.running))
    return found


def closed(worker, owners):
    torch.set_num_threads(1)
    mesh, threads = make_mesh(Layout(dp=worker.world_size)), threading.active_count()
    for owner in owners:
        trainer = Recipe(owner=partial(owner, transport=SharedTransport))(ODD, 0, mesh)
        trainer.step(random_batch(worker.rank, 2, 8, ODD.vocab))
        trainer.close()
    return threading.active_count() - threads


def test_a_closed_owner_leaves_no_thread_behind():
    assert list(launch(closed, 2, device="cpu", owners=[Zero1, Zero2, Zero3])) == [0, 0]


def test_few_rows_are_sent_at_one_time():
    """The row that was just filled, and those in flight. Each needs memory for what arrives."""
    owners = {
        Zero1: 3,
        partial(Zero1, in_flight=0): 1,
        Zero2: 1,
        partial(Zero2, in_flight=2): 3,
        Zero3: 1,
        partial(Zero3, reshard_after_forward=False): 2,
        partial(Zero3, reshard_after_forward=False, in_flight=0): 1,
    }
    for run in launch(running, 2, device="cpu", owners=list(owners)):
        assert run == [(most, 0) for most in owners.values()]
