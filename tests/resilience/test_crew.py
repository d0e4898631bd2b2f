"""Which ranks are on the list of an epoch, and what a rank finds that was not on it."""

import json
import os
import signal
import socket
import sys
import time

import pytest
import torch
import torch.distributed as dist

from helpers.resilience.agent import Agent
from helpers.resilience.crew import GONE, Crew, Lookout, Lost, sockets
from helpers.runtime.launch import launch

BEFORE = [3, 5, 8]  # the names of the epoch before; this rank is 3
LONG, SHORT = 60.0, 0.3


def stored(epochs):
    """A store with the lists and the outcomes of these epochs."""
    store = dist.HashStore()
    for epoch, (members, outcome) in enumerate(epochs):
        store.set(f"{epoch}/members", json.dumps(members))
        store.set(f"{epoch}/outcome", outcome if outcome == "ok" else json.dumps(outcome))
    return store


@pytest.mark.parametrize(
    ("outcome", "signed", "gone", "silence", "members"),
    [
        ({"rank": 1}, [8], [], LONG, [3, 8]),  # rank 1 is the one of name 5
        ({"rank": 0}, [8], [], LONG, [5, 8]),
        ({"rank": None}, [8], [5], LONG, [3, 8]),
        ({"rank": None}, [5, 8], [5], LONG, [3, 8]),  # it has signed, and died
        ({"rank": None, "new": 9}, [5, 8, 9], [], LONG, [3, 5, 8, 9]),
        ({"rank": None, "new": 9}, [5, 8], [9], LONG, [3, 5, 8]),  # it died while it came in
        ({"rank": None, "new": 9}, [5, 8], [], SHORT, [3, 5, 8]),  # it is stopped
        ({"rank": None}, [8], [], SHORT, [3, 8]),
    ],
)
def test_the_list_is_closed_when_all_have_signed_or_after_the_silence(
    outcome, signed, gone, silence, members
):
    store = stored([(BEFORE, outcome)])
    for key, names in (("1/here", signed), (GONE, gone)):
        for name in names:
            store.append(key, f"{name},")
    crew = Crew(store, members[0], first=3, silence=silence)
    crew.epoch, began = 1, time.monotonic()
    assert crew.sign() == members
    seconds = time.monotonic() - began
    assert seconds >= SHORT if silence == SHORT else seconds < LONG / 2


def test_a_rank_that_comes_too_late_goes():
    assert not Crew(stored([([0, 1], "ok")]), 2, first=2).form()


def comes(worker, rows):
    """Rank 0 was in epoch 0. For each row: epochs that began meanwhile, lists without it, a rank
    that comes in."""
    dist.destroy_process_group()
    found = []
    for missed, unsigned, new in rows:
        store = stored([([0, 7], {"rank": 1})] + [([7], {"rank": 0})] * missed)
        store.append(GONE, "7,")
        crew = Crew(store, 0, first=2, silence=LONG)
        crew.epoch, sign, late = 0, crew.sign, iter(range(unsigned))

        def closed(store=store, crew=crew, sign=sign, late=late):
            if next(late, None) is None:
                return sign()
            store.set(f"{crew.epoch}/members", "[7]")
            return [7]

        crew.sign = closed
        assert crew.form()
        found.append((crew.epoch, crew.members, crew.away))
        if unsigned:  # another rank is lost while this one is done already
            crew.end(crew.epoch, {"rank": None, "headline": "a lost rank", **new})
            with pytest.raises(Lost, match="a lost rank"):
                crew.finish()
            crew.failed(Lost())
            assert crew.joined == bool(new)
            crew.failed(Lost())  # no group has begun since
            assert not crew.joined
        else:
            crew.finish()
    return found


def test_a_rank_knows_that_an_epoch_began_without_it():
    rows = [(0, 0, {}), (2, 0, {}), (0, 1, {}), (0, 1, {"new": 9})]
    [found] = launch(comes, 1, device="cpu", rows=rows)
    assert found == [(1, [0], False), (3, [0], True), (2, [0], True), (2, [0], True)]


def watches(worker):
    """Rank 1 is on the list, and dies before its first sign of life."""
    store = dist.HashStore()
    with Lookout([store] * 3, 0, 2, silence=0.5, older={*sockets()}) as watch:
        assert watch.decided.wait(30)
        return watch.outcome["rank"]


def test_a_rank_that_never_shows_that_it_lives_is_lost():
    assert launch(watches, 1, device="cpu")[0] == 1


def cuts(worker):
    """Sockets from before and from after the epoch began, all of this process."""

    def connected(listening):
        listening.settimeout(30)
        return socket.create_connection(listening.getsockname()), listening.accept()[0]

    before = socket.create_server(("127.0.0.1", 0))
    old = connected(before)
    watch = Lookout([dist.HashStore()] * 3, 0, 3, silence=LONG, older={*sockets()})
    after = socket.create_server(("127.0.0.1", 0))
    new = connected(after)
    watch.cut()
    called = [int.from_bytes(after.accept()[0].recv(8), sys.byteorder) for _ in range(3)]
    old[0].sendall(b"x")
    return called, new[1].recv(1), old[1].recv(1), connected(after)[1].fileno() > 0


def test_an_alarm_breaks_connections_and_calls_who_waits_for_one():
    """gloo, which waits for a dead rank, gets a connection for each pair; older sockets stay."""
    assert launch(cuts, 1, device="cpu")[0] == ([0, 1, 2], b"", b"x", True)


def meets(worker):
    """Rank 1 fails before it makes its group, and rank 0 while it makes one."""
    dist.destroy_process_group()

    def body(store, name):
        init, fails = dist.init_process_group, iter([name == 1])

        def group(*given, **options):
            if next(fails, False):
                raise RuntimeError("no connection")
            init(*given, **options)

        dist.init_process_group = group
        crew = Crew(store, name, 2, silence=8.0)
        try:
            crew.form()
        except RuntimeError as error:
            crew.failed(error)
            crew.form()
        crew.finish()
        return [crew.epoch, crew.members]

    agent = Agent(body)
    for _ in range(2):
        agent.start()
    while agent.look():
        time.sleep(0.01)
    return agent.results()


def half(worker):
    """A message to rank 1 has come in part when its sender is stopped, and the watch cuts."""
    dist.destroy_process_group()

    def body(store, name):
        crew = Crew(store, name, 2, silence=2.0)
        crew.form()
        message = torch.zeros(1 << 24)
        if name == 0:
            dist.isend(message, 1)
            os.kill(os.getpid(), signal.SIGSTOP)
        work, began = dist.irecv(message, 0), time.monotonic()
        try:
            work.wait()
        except RuntimeError as error:
            crew.failed(error)
        crew.form()
        return [crew.members, time.monotonic() - began]

    agent = Agent(body)
    for _ in range(2):
        agent.start()
    while 1 in agent.running:
        agent.look()
        time.sleep(0.01)
    agent.close()
    return agent.results()


def test_a_message_that_has_come_in_part_is_not_waited_for():
    """gloo tells no error to its receiver."""
    [[members, seconds]] = launch(half, 1, device="cpu", timeout=60)[0].values()
    assert members == [1]
    assert seconds < 30


def test_ranks_meet_after_a_group_that_only_one_of_them_began():
    found = launch(meets, 1, device="cpu", timeout=60)[0]
    assert found == {0: [1, [0, 1]], 1: [1, [0, 1]]}
