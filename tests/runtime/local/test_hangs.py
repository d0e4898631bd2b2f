"""Real hangs that can be proved end at once; what is only slow is never ended early."""

import ctypes
import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local.hangs.whereabouts import SPINNING_SECONDS

SOON = 20.0  # seconds; the promise is 5, and this machine may be busy
LATE = 6.0  # seconds: a rank that joins so late is only slow


def test_a_call_in_c_that_the_look_itself_ends_is_no_hang():
    """It holds the GIL, so the rank can give no sign; the signal for its stack interrupts it."""

    def sleeps(worker):
        ctypes.PyDLL(None).sleep(60)
        return worker.rank

    with Cluster() as cluster:
        cluster.run(lambda worker: None)  # the start alone may take two seconds
        assert list(cluster.run(sleeps, timeout=2)) == [0, 1]


def one_has_returned(worker):
    if worker.rank != 1:
        dist.barrier()


def the_root_has_returned(worker):
    if worker.rank != 0:
        dist.broadcast_object_list([None], src=0)


def the_root_waits_for_one_that_has_returned(worker):
    if worker.rank != 2:
        parts = [torch.ones(1)] * 3 if worker.rank == 0 else None
        dist.gather(torch.ones(1), parts, dst=0)


def returned_after_many(worker):
    for _ in range(2_050):  # more than the flight recorder keeps
        dist.all_reduce(torch.ones(1))
    if worker.rank != 1:
        dist.all_reduce(torch.ones(1))


def a_subgroup_waits(worker):
    group = dist.new_group([1, 2])
    if worker.rank == 1:
        dist.all_reduce(torch.ones(1), group=group)


def two_groups_in_different_order(worker):
    groups = [dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])]
    for group in groups if worker.rank else groups[::-1]:
        dist.all_reduce(torch.ones(1), group=group)


def a_chain(worker):
    """Rank 0 waits for 1, which waits for 2 in another group, which has returned."""
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    if worker.rank == 1:
        dist.all_reduce(torch.ones(1), group=groups[1])
    if worker.rank < 2:
        dist.all_reduce(torch.ones(1), group=groups[0])


def receive_before_send(worker):
    right, left = (worker.rank + 1) % 3, (worker.rank - 1) % 3
    dist.recv(torch.ones(4), left)
    dist.send(torch.ones(4), right)


def send_to_one_that_has_returned(worker):
    if worker.rank == 0:
        dist.send(torch.ones(4), 1)


def the_wrong_tag(worker):
    if worker.rank == 0:
        worker.state.sent = dist.isend(torch.ones(4), 1, tag=1)
    if worker.rank == 1:
        dist.recv(torch.ones(4), group_src=0, tag=2)


def spin_in_c(seconds: float):
    """Burn a core in one call of C that releases the lock: so does cudaStreamSynchronize."""
    began, some = time.perf_counter(), 100_000
    hashlib.pbkdf2_hmac("sha256", b"", b"", some)
    rate = some / (time.perf_counter() - began)
    hashlib.pbkdf2_hmac("sha256", b"", b"", min(int(rate * seconds), 2**31 - 1))


def record_of_nccl(**pending):
    """Let this rank's record show two finished collectives of NCCL, and this pending one."""
    from helpers.runtime.local.hangs import whereabouts

    entries = [
        {
            "record_id": number, "collective_seq_id": number + 1, "profiling_name": f"nccl:{name}",
            "process_group": ["0", ""], "retired": number < 2, "state": "scheduled",
            "is_p2p": False, "timeout_ms": 1_800_000, "thread_id": "7",
        }
        for number, name in enumerate(["all_reduce", "all_reduce", *pending.values()])
    ]  # fmt: skip
    gloos = whereabouts.recorded
    whereabouts.recorded = lambda: gloos() + entries


def a_gpu_waits_for_one_that_has_returned(worker):
    if worker.rank == 1:
        record_of_nccl()
    else:
        record_of_nccl(pending="_all_gather_base")
        spin_in_c(600)


def gpus_in_different_collectives(worker):
    record_of_nccl(pending="broadcast" if worker.rank == 2 else "all_reduce_barrier")
    spin_in_c(600)


PROVED = [
    (one_has_returned, "ranks 0 and 2 wait in barrier for rank 1, which has returned"),
    (the_root_has_returned, "broadcast_object_list for rank 0, which has returned"),
    (the_root_waits_for_one_that_has_returned, "rank 0 waits in gather for rank 2, which has"),
    (returned_after_many, "in all_reduce for rank 1, which has returned"),
    (a_subgroup_waits, "rank 1 waits in all_reduce for rank 2, which has returned"),
    (two_groups_in_different_order, "rank 0 waits in all_reduce for rank 1; ranks 1 and 2"),
    (a_chain, "rank 0 waits in all_reduce for rank 1; rank 1 waits in all_reduce for rank 2"),
    (receive_before_send, "rank 0 waits in recv for rank 2; rank 1 waits in recv for rank 0"),
    (send_to_one_that_has_returned, "rank 0 waits in send for rank 1, which has returned"),
    (the_wrong_tag, "rank 1 waits in recv for rank 0, which has returned"),
    (
        a_gpu_waits_for_one_that_has_returned,
        "ranks 0 and 2 wait in NCCL's all_gather (number 3 of group 0) for rank 1, which has",
    ),
    (
        gpus_in_different_collectives,
        "ranks 0 and 1 wait in NCCL's all_reduce (number 3 of group 0), but rank 2 called NCCL's "
        "broadcast (number 3 of group 0) instead",
    ),
]
GPUS = {a_gpu_waits_for_one_that_has_returned, gpus_in_different_collectives}


def hang(fn) -> tuple[WorkerError, float]:
    """Return the error of a call that hangs, and its seconds."""
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        launch(fn, workers=3, timeout=None)
    return caught.value, time.monotonic() - began


@pytest.fixture(scope="module")
def hangs():
    """All hangs, some at a time: ranks that hang need no core, but for those that spin."""
    launch(lambda worker: None, workers=1)  # the server's start is no part of a hang
    with ThreadPoolExecutor(3) as pool:
        return {fn: pool.submit(hang, fn) for fn, _ in PROVED}


@pytest.mark.parametrize(("fn", "said"), PROVED)
def test_a_hang_that_can_be_proved_ends_at_once(hangs, fn, said):
    error, seconds = hangs[fn].result()
    assert seconds < (SOON + SPINNING_SECONDS if fn in GPUS else SOON)
    assert said in str(error).split("\n")[0]
    assert str(error).startswith("a hang: ")
    assert error.kind == "hang"
    assert "line " in error.traceback


def asleep_then_joins(worker):
    if worker.rank == 1:
        time.sleep(LATE)
    dist.all_reduce(torch.ones(4))


def computes_in_c(worker):
    x = torch.rand(1500, 1500)
    until = time.monotonic() + (LATE if worker.rank == 1 else 0)
    while time.monotonic() < until:
        x @ x
    dist.barrier()


def leaves_a_message_on_its_way(worker):
    """Rank 1 has returned, and its message is received seconds later."""
    if worker.rank == 1:
        worker.state.sent = dist.isend(torch.full((4,), 5.0), 0)
        return None
    if worker.rank == 0:
        time.sleep(LATE)
        t = torch.zeros(4)
        dist.recv(t, 1)
        return t.sum().item()
    return None


def a_thread_goes_on(worker):
    """Rank 1 returns; a thread of it joins the others later."""
    if worker.rank == 1:
        threading.Thread(target=asleep_then_joins, args=(worker,)).start()
    else:
        dist.all_reduce(torch.ones(4))


def a_thread_sends(worker):
    def later():
        time.sleep(LATE)
        dist.send(torch.ones(1), 0)

    if worker.rank == 1:
        threading.Thread(target=later).start()
    elif worker.rank == 0:
        dist.recv(torch.ones(1), 1)


def different_numbers_are_fine(worker):
    """Messages count too in a group's sequence; its collectives are numbered apart from them."""
    if worker.rank == 0:
        dist.send(torch.ones(1), 1)
    if worker.rank == 1:
        dist.recv(torch.ones(1), 0)
    if worker.rank == 2:
        dist.broadcast(torch.ones(1), 2)
        dist.all_reduce(torch.ones(1))
        return
    if worker.rank == 1:
        time.sleep(LATE)
    dist.broadcast(torch.ones(1), 2)
    dist.all_reduce(torch.ones(1))


def groups_that_finish_apart(worker):
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    if worker.rank == 1:
        time.sleep(LATE)
    for group, members in zip(groups, ([0, 1], [1, 2]), strict=True):
        if worker.rank in members:
            dist.all_reduce(torch.ones(1), group=group)


def gives_up_by_itself(worker):
    """A group with a timeout of its own: the error is caught, and the others are told."""
    from datetime import timedelta

    group = dist.new_group([0, 2], timeout=timedelta(seconds=6))
    if worker.rank == 0:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1), group=group)


def like_collectives_by_other_names(worker):
    """The pairs mean the same on the wire, and rank 1 comes late."""
    if worker.rank == 1:
        time.sleep(LATE)
        dist.all_gather([torch.ones(1) for _ in range(3)], torch.ones(1))
    else:
        dist.all_gather_into_tensor(torch.ones(3), torch.ones(1))


def begins_again(worker):
    """The numbers of a new default group begin again: rank 0 has not called its first one yet."""
    path = f"/tmp/begins-again-{os.getppid()}"
    for _ in range(5):
        dist.barrier()
    dist.destroy_process_group()
    store = dist.FileStore(path, 3)
    dist.init_process_group("gloo", store=store, rank=worker.rank, world_size=3)
    if worker.rank == 0:
        dist.recv(torch.ones(1), 2)
    if worker.rank == 2:
        time.sleep(LATE)
        dist.send(torch.ones(1), 0)
    dist.all_reduce(torch.ones(1))
    if worker.rank == 0:  # now that all have met there
        os.unlink(path)


def a_gpu_waits_for_one_that_computes(worker):
    """Rank 1 calls its third collective late, and computes in one call of C until then."""
    if worker.rank == 1:
        record_of_nccl()
        spin_in_c(LATE + 2)
    record_of_nccl(pending="all_reduce")
    if worker.rank != 1:
        spin_in_c(LATE + 6)


SLOW = [
    a_gpu_waits_for_one_that_computes,
    asleep_then_joins,
    computes_in_c,
    leaves_a_message_on_its_way,
    a_thread_goes_on,
    a_thread_sends,
    different_numbers_are_fine,
    groups_that_finish_apart,
    gives_up_by_itself,
    like_collectives_by_other_names,
    begins_again,
]


def test_what_is_slow_is_not_ended():
    """All at once, each on ranks of its own: one after the other they would wait a minute."""
    with ThreadPoolExecutor(len(SLOW)) as pool:
        calls = {fn.__name__: pool.submit(launch, fn, workers=3, timeout=None) for fn in SLOW}
    assert {name: call.exception() for name, call in calls.items()} == dict.fromkeys(calls)
    assert calls["leaves_a_message_on_its_way"].result()[0] == 20.0
