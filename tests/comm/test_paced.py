"""A paced link: real sums and gathers, and no sooner than planned."""

import time
from types import SimpleNamespace

import pytest
import torch

from helpers.comm import paced
from helpers.comm.paced import PacedTransport
from helpers.comm.regions import gathered, sum_scattered
from helpers.comm.transport import GroupTransport
from helpers.measure.trace import trace
from helpers.parallel.tensor.chunks import gather_and_multiply, multiply_and_scatter
from helpers.runtime.launch import launch


def calls(worker):
    transport = PacedTransport()
    total = torch.full((100,), worker.rank + 1.0)
    largest = torch.full((10,), float(worker.rank))
    every, own = torch.empty(2, 5), torch.full((5,), float(worker.rank))
    part, parts = torch.empty(5), torch.arange(10.0).view(2, 5)
    received, sent = torch.empty(2), torch.tensor([1.0, 2.0]) + 10 * worker.rank
    to, came = torch.full((3,), float(worker.rank)), torch.empty(3)
    works = [
        transport.all_reduce(total),
        transport.maximum(largest),
        transport.all_gather(every, own),
        transport.reduce_scatter(part, parts),
        transport.all_to_all(received, sent, ([1, 1], [1, 1])),
        *transport.begin(to, transport.right, came, transport.left),
    ]
    assert transport.begin() == []
    transport.broadcast(own, 1)
    for work in works:
        work.wait()
    return {
        "busy": transport.busy,
        "exposed": transport.exposed,
        "results": (total[0].item(), largest[0].item(), every[:, 0].tolist(), part.tolist()),
        "received": [*received.tolist(), *came.tolist()],
        "own": (2 * torch.arange(10.0).view(2, 5)[worker.rank]).tolist(),
    }


def test_a_link_without_limits_waits_for_the_messages_alone():
    for rank, run in enumerate(launch(calls, 2, device="cpu")):
        assert run["received"] == [1 + rank, 11 + rank, *[1 - rank] * 3]
        assert run["busy"] == run["exposed"] == 0
        assert run["results"] == (3.0, 1.0, [0.0, 1.0], run["own"])


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test, a sleep and a message's arrival move; rank 1 of 4."""
    now = SimpleNamespace(
        perf_counter=lambda: now.time, sleep=lambda seconds: go(seconds), time=50.0
    )

    def go(seconds):
        assert seconds > 0
        now.time += seconds

    def init(self, group=None):
        self.group, self.rank, self.size = group, 1, 4

    def arrives_at(time):
        return SimpleNamespace(wait=lambda: setattr(now, "time", max(now.time, time)))

    monkeypatch.setattr(paced, "time", now)
    monkeypatch.setattr(GroupTransport, "__init__", init)
    for name in ("all_reduce", "maximum", "all_gather", "reduce_scatter", "all_to_all"):
        monkeypatch.setattr(GroupTransport, name, lambda *_: arrives_at(now.arrival))
    monkeypatch.setattr(GroupTransport, "broadcast", lambda *_: None)
    monkeypatch.setattr(GroupTransport, "begin", lambda *_: [arrives_at(now.arrival)] * 2)
    now.arrival = 0.0
    return now


def test_the_plan_of_a_link_by_hand(clock):
    """Half a second a call, 8 bytes a second; of 16 bytes, a ring of 4 sends 24 or 12."""
    link = PacedTransport("a group", alpha=0.5, bytes_per_second=8)
    assert (link.group, link.busy, link.exposed) == ("a group", 0, 0)
    every, own = torch.ones(4, 1), torch.ones(1)
    first = link.all_reduce(every)  # 3.5 s
    clock.time += 1
    second = link.reduce_scatter(own, every)  # 2 s, after the first
    assert link.calls[0] == ("all_reduce", 50, 53.5)
    assert link.calls[1] == ("reduce_scatter", 53.5, 55.5)
    clock.time = 52.0
    first.wait()
    assert (clock.time, link.exposed) == (53.5, 1.5)
    clock.time = 55.0
    clock.arrival = 56.0
    third = link.all_gather(every, own)  # 2 s
    second.wait()
    assert (clock.time, link.exposed) == (55.5, 2.0)
    third.wait()  # its messages arrive at 56, its planned end is 57.5
    assert (clock.time, link.exposed) == (57.5, 4.0)
    clock.time, clock.arrival = 60.0, 70.0
    late = link.maximum(every)  # 3.5 s; its messages need 10
    late.wait()
    assert (clock.time, link.exposed) == (70, 7.5)
    clock.time = 80.0
    again = link.all_reduce(torch.ones(0))
    clock.time = 90.0
    again.wait()  # it was over long before
    assert (clock.time, link.exposed, link.busy) == (90, 7.5, 3.5 + 2 + 2 + 3.5 + 0.5)
    assert [call for call, *_ in link.calls] == [
        "all_reduce", "reduce_scatter", "all_gather", "all_reduce", "all_reduce",
    ]  # fmt: skip
    assert link.calls[-1] == ("all_reduce", 80, 80.5)
    link.all_to_all(torch.ones(4, 2), torch.ones(4, 2))  # 24 of 32 bytes: 3.5 s
    assert link.calls[-1] == ("all_to_all", 90, 93.5)
    clock.arrival = 0.0
    [both] = link.begin(torch.ones(2), 0, torch.ones(4), 1)  # 8 bytes there, 16 back: 2.5 s
    assert link.calls[-1] == ("send", 93.5, 96)
    both.wait()
    assert clock.time == 96
    link.begin(None, 0, torch.ones(4), 1)
    link.begin(torch.ones(2), 0)
    assert [end for _, _, end in list(link.calls)[-2:]] == [98.5, 100]
    link.broadcast(every)  # 16 bytes along a chain: 2.5 s
    assert (link.calls[-1], clock.time) == (("broadcast", 100, 102.5), 102.5)


def test_a_link_has_no_limits_unless_you_choose(clock):
    link = PacedTransport()
    link.all_reduce(torch.ones(100)).wait()
    assert (link.busy, link.exposed, clock.time) == (0, 0, 50)
    assert link.calls.maxlen == 100_000


def before_within_and_after(worker):
    transport = PacedTransport(alpha=1e-3)
    every, own = torch.ones(1, 3), torch.ones(3)
    transport.all_gather(every, own).wait()
    with trace() as found:
        own + own
        transport.all_reduce(own).wait()
        own + own
    transport.reduce_scatter(own, every).wait()
    drawn = transport.on(found)
    assert [span.start for span in drawn.spans] == sorted(span.start for span in drawn.spans)
    assert drawn.began == found.began
    computed = [span.name for span in found.spans if span.lane != "communication"]
    assert [span.name for span in drawn.spans if span.lane != "communication"] == computed
    return [span.name for span in drawn.of("communication")]


def test_a_trace_gets_the_calls_of_its_own_time():
    assert list(launch(before_within_and_after, 1, device="cpu")) == [["link:all_reduce"]]


LINK = 0.4  # seconds of a whole message on the link, and of a whole product


def overlapped(worker, chunks):
    """A gather and its product, then a product and its reduce-scatter; each product sleeps.

    A sleeping product needs no core, so other programs on this machine change little.
    """
    tokens = 8 * worker.world_size
    transport = PacedTransport(bytes_per_second=tokens * 4 * 8 / 2 / LINK)

    def product(x):
        time.sleep(LINK * x.shape[1] / tokens)
        return 2 * x

    shard = torch.full((1, 8, 8), float(worker.rank))
    with trace():
        began = time.perf_counter()
        if chunks == 1:
            whole = gathered(shard, transport).wait()
            partial_sums = product(product(whole))
            own = sum_scattered(partial_sums, transport).wait()
        else:
            _, (once,) = gather_and_multiply(
                shard, transport, chunks, lambda whole: [product(whole)], keep=False
            )
            own = multiply_and_scatter([once], transport, chunks, lambda parts: product(parts[0]))
        seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "own": own,
        "busy": transport.busy,
        "exposed": transport.exposed,
    }


@pytest.mark.alone
def test_chunks_hide_most_of_a_link_s_time():
    """Two messages and two products of 0.4 s take 1.6 s in turn.

    In 4 chunks: 0.1 s for the first, 0.8 s of products, 0.1 s for the last.
    """
    turn, chunks = (launch(overlapped, 2, device="cpu", chunks=n) for n in (1, 4))
    for rank, (slow, fast) in enumerate(zip(turn, chunks, strict=True)):
        assert torch.equal(slow["own"], fast["own"])
        assert slow["own"].unique().tolist() == [2 * 2 * 2 * rank]  # two doublings, two ranks
        assert slow["busy"] == pytest.approx(2 * LINK)
        assert fast["busy"] == pytest.approx(2 * LINK)
        assert slow["seconds"] >= 4 * LINK
        assert fast["seconds"] < 0.8 * slow["seconds"]
        assert 1 - slow["exposed"] / slow["busy"] < 0.05
        assert 1 - fast["exposed"] / fast["busy"] > 0.3
