"""Posted receives and buffered sends: no rank waits for a rank that waits for it."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.comm import point_to_point
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.point_to_point import Buffers, PointToPoint, two_way
from helpers.runtime.launch import launch

MANY = 2**20  # more numbers than a socket buffers


def all_send_first(worker, apart):
    """Every rank sends to the next before it receives; then two messages to one rank, in order."""
    link = two_way(make_mesh(Layout(pp=2, dp=2)), "pp", apart)
    assert (link.back is link.group) == (not apart)
    other = 1 - link.rank
    link.send(torch.full((MANY,), float(worker.rank)), other)
    came = torch.empty(MANY)
    link.receive(came, other).wait()
    link.finish()
    assert link.leaving == []
    buffers = [torch.empty(3), torch.empty(5)]
    posted = [link.receive(buffer, other) for buffer in buffers]
    link.send(torch.full((3,), 1.0), other)
    link.send(torch.full((5,), 2.0), other)
    for work in posted:
        work.wait()
    link.send(torch.empty(0, 4), other)
    assert link.receive(torch.empty(0, 4), other) is None
    link.finish()
    return {"came": came.unique().tolist(), "order": [b.unique().tolist() for b in buffers]}


@pytest.mark.parametrize("apart", [None, True])
def test_messages_of_a_group_arrive_in_order_whoever_is_first(apart):
    runs = launch(all_send_first, 4, device="cpu", apart=apart)
    assert runs.column("came") == [[2.0], [3.0], [0.0], [1.0]]  # groups 0, 2 and 1, 3
    assert runs.column("order") == [[[1.0], [2.0]]] * 4


def on_nccl(worker):
    """There a group has one queue for both directions; a message that has left is forgotten."""
    mesh, real = make_mesh(Layout(pp=2)), dist.get_backend
    dist.get_backend = lambda group: "nccl"
    try:
        one, two = two_way(mesh, "pp", apart=False), two_way(mesh, "pp")
    finally:
        dist.get_backend = real
    works = [SimpleNamespace(is_completed=lambda done=done: done) for done in (True, False, True)]
    two.leaving = [(work, torch.ones(1)) for work in works]
    two.send(torch.ones(0), 1 - two.rank)
    left = [work.is_completed() for work, _ in two.leaving]
    ranks = dist.get_process_group_ranks(two.back)
    return one.back is one.group, two.back is two.group, ranks, left


def test_messages_to_lower_ranks_have_a_group_of_their_own(monkeypatch):
    """Rank 1 of 3, which are ranks 10, 11 and 12 of the world."""
    asked = []
    fake = SimpleNamespace(
        get_global_rank=lambda group, rank: {"there": 10, "back": 99}[group] + rank,
        isend=lambda tensor, to, group: asked.append(("to", to, group)),
        irecv=lambda tensor, source, group: asked.append(("from", source, group)) or "a work",
    )
    monkeypatch.setattr(point_to_point, "dist", fake)
    link = object.__new__(PointToPoint)
    link.group, link.back, link.rank, link.leaving = "there", "back", 1, []
    for other in (0, 2):
        link.send(torch.ones(1), other)
        assert link.receive(torch.ones(1), other) == "a work"
        link.leaving = []
    assert asked == [
        ("to", 10, "back"), ("from", 10, "there"), ("to", 12, "there"), ("from", 12, "back"),
    ]  # fmt: skip


def test_where_directions_wait_for_each_other_each_has_its_group():
    assert list(launch(on_nccl, 2, device="cpu")) == [(True, False, [0, 1], [False])] * 2


def sent_then_dropped(worker):
    """The sender forgets its tensor at once; the link keeps it until it has left."""
    link, store = PointToPoint(), dist.distributed_c10d._get_default_store()
    if worker.rank == 0:
        link.send(torch.full((MANY,), 7.0), 1)
        torch.full((MANY,), 8.0)  # may get the memory of a tensor that nobody keeps
        link.send(torch.full((3,), 9.0), 1)
        works = [work for work, _ in link.leaving]
        assert len(works) == 2  # the first has not left: nobody receives it yet
        store.set("sent", "")
        link.finish()
        assert all(work.is_completed() for work in works)
        return None
    store.wait(["sent"])
    came, more = torch.empty(MANY), torch.empty(3)
    link.receive(came, 0).wait()
    link.receive(more, 0).wait()
    return came.unique().tolist() + more.unique().tolist()


def test_a_tensor_is_kept_until_it_has_left():
    assert launch(sent_then_dropped, 2, device="cpu")[1] == [7.0, 9.0]


def test_buffers_are_used_again_at_any_smaller_shape():
    buffers = Buffers(24, torch.float64, "cpu")
    first = buffers.take((2, 3, 4))
    second = buffers.take((1, 3, 4))
    assert first.data_ptr() != second.data_ptr()
    assert (second.shape, second.dtype, second.requires_grad) == ((1, 3, 4), torch.float64, False)
    place = second.data_ptr()
    buffers.give_back(second.detach().requires_grad_())
    assert buffers.take((2, 3, 4)).data_ptr() == place
    assert buffers.made == 2
    empty = buffers.take((0, 3, 4))
    buffers.give_back(empty)
    assert buffers.take((2, 3, 4)).numel() == 24
    assert buffers.made == 3
    with pytest.raises(RuntimeError):
        buffers.take((5, 5))
