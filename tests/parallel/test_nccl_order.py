"""Every kind of recipe equals its twin where each group has one queue, as on NCCL.

Two ranks and GPipe never show a deadlock of messages that are posted early: see four ranks.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings
from helpers.parallel.cut_sequence.collective import ulysses
from helpers.parallel.cut_sequence.model import context_parallel
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.mixture.transform import expert_parallel
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans import schedules
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.training import twin
from tests.nccl_order import in_nccl_order

CONFIG = GPTConfig(vocab=32, context=8, width=16, layers=3, heads=4)
EXPERTS = ExpertSettings(count=5, hidden=6, shared=1, loss_rate=0.1, bias_rate=0.01)


def piped(schedule, p, **others):
    recipe = Recipe(layout=Layout(pp=p, **others), schedule=schedule)
    return recipe, {"micro_batches": 2 * p, "config": replace(CONFIG, layers=2 * p)}


def on(axis, size, **seams):
    return Recipe(**seams), {"layout": {axis: size}}


def routed(case):
    strategy, options = case
    config = options.get("config", CONFIG)
    return strategy, options | {"config": replace(config, experts=EXPERTS)}


interleaved = partial(schedules.interleaved, chunks=2)
CASES = {
    "gpipe, 2": piped(schedules.gpipe, 2),
    "1f1b, 4": piped(schedules.one_f_one_b, 4),
    "interleaved, 4": piped(interleaved, 4),
    "zb-h1, 4": piped(schedules.zero_bubble_h1, 4),
    "zb-v, 4": piped(schedules.zero_bubble_v, 4),
    "1f1b, 2 × data parallel, 2": piped(schedules.one_f_one_b, 2, dp=2),
    "zb-v, 2 × tensor, 2": piped(schedules.zero_bubble_v, 2, tp=2),
    "ddp, 4": (DataParallel, {"layout": {"dp": 4}}),
    "zero 1, 2": on("dp", 2, owner=Zero1),
    "zero 2, 4": on("dp", 4, owner=Zero2),
    "zero 3, 4": on("dp", 4, owner=Zero3),
    "tensor, 2": on("tp", 2, transform=tensor_parallel),
    "sequence, 4": on("tp", 4, transform=sequence_parallel),
    "ring, 2": on("cp", 2, transform=context_parallel),
    "ring, 4": on("cp", 4, transform=context_parallel, owner=Zero1),
    "experts, 2": routed(on("ep", 2, transform=expert_parallel)),
    "experts, 4": routed(on("ep", 4, transform=expert_parallel, owner=Zero3)),
    "experts, 2 × data parallel, 2": routed((Recipe(layout=Layout(ep=2, dp=2)), {})),
    "1f1b, 2 × experts, 2": routed(piped(schedules.one_f_one_b, 2, ep=2)),
    "zb-v, 2 × experts, 2": routed(piped(schedules.zero_bubble_v, 2, ep=2)),
    "ulysses, 2": on("cp", 2, transform=partial(context_parallel, attention=ulysses)),
    "usp, 4": (
        Recipe(transform=partial(context_parallel, axis=("ring", "heads")), owner=Replicated),
        {"layout": {"ring": 2, "heads": 2}, "micro_batches": 2},
    ),
}


@pytest.mark.usefixtures("kept_ranks")
@pytest.mark.parametrize("case", CASES)
def test_it_equals_its_twin(case, monkeypatch):
    (strategy, options), kept = CASES[case], twin.launch

    def ordered(fn, workers=2, **given):
        if workers > 1:
            fn, given = in_nccl_order, {"fn": fn, **given}
        return kept(fn, workers, **given)

    monkeypatch.setattr(twin, "launch", ordered)
    given = {"config": CONFIG, "steps": 2, "sequences": 8, "device": "cpu"} | options
    comparison = twin.compare(strategy, **given)
    assert comparison, comparison


def early_receive(worker):
    """Rank 0 receives before it sends, rank 1 too: on gloo that is no deadlock."""
    other, came = 1 - worker.rank, torch.zeros(1)
    receive = dist.irecv(came, other)
    send = dist.isend(torch.ones(1), other)
    receive.wait()
    send.wait()
    return came.item()


def test_a_receive_holds_up_the_sends_after_it():
    assert list(launch(early_receive, 2, device="cpu")) == [1.0, 1.0]
    with pytest.raises(WorkerError, match="a hang"):
        launch(in_nccl_order, 2, device="cpu", timeout=2, fn=early_receive)


def early_sum(worker):
    """Rank 0 starts a sum before a message to rank 1, which needs the message for the sum."""
    number = torch.ones(1)
    if worker.rank == 0:
        dist.all_reduce(number, async_op=True)
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(number, 0)
        dist.all_reduce(number)


def test_the_first_call_of_a_group_blocks_until_every_rank_is_there():
    launch(early_sum, 2, device="cpu")
    with pytest.raises(WorkerError, match="a hang"):
        launch(in_nccl_order, 2, device="cpu", timeout=2, fn=early_sum)


def changed_too_early(worker):
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    tensor += 1
    work.wait()


def from_two_threads(worker):
    from threading import Thread

    failed = []

    def reduce():
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            failed.append(str(error))

    dist.all_reduce(torch.ones(1))
    thread = Thread(target=reduce)
    thread.start()
    thread.join()
    raise RuntimeError(*failed)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [(changed_too_early, "has changed before wait"), (from_two_threads, "another thread")],
)
def test_what_goes_wrong_on_nccl_is_refused(mistake, words):
    with pytest.raises(WorkerError, match=words):
        launch(in_nccl_order, 2, device="cpu", fn=mistake)
