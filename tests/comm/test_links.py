"""Bytes by class of link: every call's receivers, and links that are paced between nodes only."""

import pytest
import torch
import torch.distributed as dist

from helpers.comm.ledger import ledger
from helpers.comm.links import link_bytes, paced_between
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.paced import PacedTransport
from helpers.comm.transport import GroupTransport
from helpers.runtime.launch import launch

LOCAL = 2
S = 4 * 240  # bytes of 240 numbers
# (inside, between) of each rank's bytes, on two nodes of two ranks
CALLS = {
    "all_reduce": [(1.5, 0), (0, 1.5), (1.5, 0), (0, 1.5)],  # rank 1 and rank 3 leave their node
    "all_gather": [(0.75, 0), (0, 0.75), (0.75, 0), (0, 0.75)],
    "all_to_all": [(0.25, 0.5)] * 4,
    "uneven": [(2 / 24, 7 / 24), (1 / 24, 7 / 24), (4 / 24, 3 / 24), (3 / 24, 3 / 24)],
    "outer": [(0, 1)] * 4,
    "inner": [(1, 0)] * 4,
    "send": [(0, 0), (0, 1), (0, 0), (0, 0)],
    "broadcast": [(0, 0)] * 4,  # its receivers are not known
}


def every_call(worker):
    mesh = make_mesh(Layout(node=2, local=LOCAL))
    whole, every = torch.ones(240), torch.ones(4, 60)
    transport, rank = GroupTransport(), worker.rank
    sizes = [10, 20, 30, 40]
    outer, inner = (GroupTransport(mesh.group(axis)) for axis in mesh.layout.axes)

    def message():
        if rank == 1:
            dist.send(whole, 2)
        if rank == 2:
            dist.recv(whole, 1)

    calls = {
        "all_reduce": lambda: transport.all_reduce(whole).wait(),
        "all_gather": lambda: transport.all_gather(every, whole[:60]).wait(),
        "all_to_all": lambda: transport.all_to_all(torch.empty(240), whole).wait(),
        "uneven": lambda: transport.all_to_all(
            torch.empty(4 * sizes[rank]), whole[:100], ([sizes[rank]] * 4, sizes)
        ).wait(),
        "outer": lambda: outer.all_reduce(whole).wait(),
        "inner": lambda: inner.all_reduce(whole).wait(),
        "send": message,
        "broadcast": lambda: transport.broadcast(whole),
    }
    found = {}
    for name, call in calls.items():
        with ledger() as log:
            call()
        found[name] = tuple(link_bytes(log.entries, rank, LOCAL).values())
    made = [paced_between(LOCAL, alpha=0.0)(mesh.group(axis)) for axis in mesh.layout.axes]
    return found, [isinstance(one, PacedTransport) for one in made]


@pytest.fixture(scope="module")
def runs():
    return list(launch(every_call, 4, device="cpu"))


@pytest.mark.parametrize("call", CALLS)
def test_the_links_of_each_call(runs, call):
    for (found, _), (inside, between) in zip(runs, CALLS[call], strict=True):
        assert found[call] == pytest.approx((inside * S, between * S))


def test_only_links_between_nodes_are_paced(runs):
    assert [paced for _, paced in runs] == [[True, False]] * 4
