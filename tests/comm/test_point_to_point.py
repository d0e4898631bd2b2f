"""Posted receives and buffered sends: no rank waits for a rank that waits for it."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.comm import point_to_point
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.point_to_point import Buffers, PointToPoint, between_neighbours, neighbours
from helpers.runtime.launch import launch

MANY = 2**20  # more numbers than a socket buffers


def all_send_first(worker):
    """Every rank sends to the next before it receives; then two messages to one rank, in order."""
    link = between_neighbours(make_mesh(Layout(pp=2, dp=2)), "pp")
    assert not link.channels
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


def test_messages_of_a_group_arrive_in_order_whoever_is_first():
    runs = launch(all_send_first, 4, device="cpu")
    assert runs.column("came") == [[2.0], [3.0], [0.0], [1.0]]  # groups 0, 2 and 1, 3
    assert runs.column("order") == [[[1.0], [2.0]]] * 4


def test_neighbours_on_a_ring():
    assert neighbours(1) == []
    assert neighbours(2) == [(0, 1), (1, 0)]
    assert neighbours(4) == [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (3, 2)]


def on_nccl(worker):
    """There each channel has a group; a message that has left is forgotten."""
    mesh, real = make_mesh(Layout(dp=2, pp=3)), dist.get_backend_config
    dist.get_backend_config = lambda group: "cpu:nccl,cuda:gloo"
    try:
        link = between_neighbours(mesh, "pp")
    finally:
        dist.get_backend_config = real
    works = [SimpleNamespace(is_completed=lambda done=done: done) for done in (True, False, True)]
    link.leaving = [(work, torch.ones(1)) for work in works]
    link.send(torch.ones(0), link.right)
    left = [work.is_completed() for work, _ in link.leaving]
    members = {pair: dist.get_process_group_ranks(g) for pair, g in link.channels.items()}
    link.leaving = []
    link.send(torch.full((1,), float(worker.rank)), link.right)
    came = torch.empty(1)
    link.receive(came, link.left).wait()
    link.finish()
    groups = {id(group) for group in link.channels.values()}
    return {"members": members, "left": left, "came": came.item(), "groups": len(groups)}


def test_on_nccl_each_channel_has_a_group_of_its_own():
    """The pipelines of this layout are the ranks 0, 1, 2 and 3, 4, 5."""
    runs = launch(on_nccl, 6, device="cpu")
    assert runs[4]["members"] == {(0, 1): [3, 4], (1, 0): [3, 4], (1, 2): [4, 5], (2, 1): [4, 5]}
    assert runs[0]["members"] == {(0, 1): [0, 1], (1, 0): [0, 1], (0, 2): [0, 2], (2, 0): [0, 2]}
    assert runs.column("left") == [[False]] * 6
    assert runs.column("came") == [2.0, 0.0, 1.0, 5.0, 3.0, 4.0]
    assert runs.column("groups") == [4] * 6


def test_a_message_uses_the_group_of_its_channel(monkeypatch):
    """Rank 1 of 3, which are ranks 10, 11 and 12 of the world."""
    asked = []
    fake = SimpleNamespace(
        get_global_rank=lambda group, rank: {"there": 10}[group] + rank,
        isend=lambda tensor, to, group: asked.append(("to", to, group)),
        irecv=lambda tensor, source, group: asked.append(("from", source, group)) or "a work",
    )
    monkeypatch.setattr(point_to_point, "dist", fake)
    link = object.__new__(PointToPoint)
    link.group, link.rank, link.leaving = "there", 1, []
    link.channels = {(1, 0): "up", (0, 1): "down", (2, 1): "back"}
    for other in (0, 2):
        link.send(torch.ones(1), other)
        assert link.receive(torch.ones(1), other) == "a work"
        link.leaving = []
    assert asked == [
        ("to", 10, "up"), ("from", 10, "down"), ("to", 12, "there"), ("from", 12, "back"),
    ]  # fmt: skip


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
    assert buffers.take(()).shape == ()
    with pytest.raises(RuntimeError):
        buffers.take((5, 5))
