"""The double of NCCL finds what goes wrong there: messages out of order, tensors changed too early.

Each kind of recipe runs in it: see ORDERED in `test_strategies`.
"""

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.nccl_order import in_nccl_order


def early_receive(worker):
    """Rank 0 receives before it sends, rank 1 too: on gloo that is no deadlock."""
    other, came = 1 - worker.rank, torch.zeros(1)
    receive = dist.irecv(came, other)
    send = dist.isend(torch.ones(1), other)
    receive.wait()
    send.wait()
    assert came == 1


def early_sum(worker):
    """Rank 0 starts a sum before a message to rank 1, which needs the message for the sum."""
    number = torch.ones(1)
    if worker.rank == 0:
        dist.all_reduce(number, async_op=True)
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(number, 0)
        dist.all_reduce(number)


@pytest.mark.parametrize("too_early", [early_receive, early_sum])
def test_what_gloo_lets_through_hangs(too_early):
    """A receive holds up the sends after it, and a group's first call waits for every rank."""
    launch(too_early, 2, device="cpu")
    with pytest.raises(WorkerError, match="a hang"):
        launch(in_nccl_order, 2, device="cpu", timeout=2, fn=too_early)


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
