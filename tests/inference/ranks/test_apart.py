"""Prefill and decode apart, and together: each request gets the tokens of one process."""

import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.inference.ranks import apart
from helpers.inference.ranks.apart import (
    Rank,
    continue_all,
    read_all,
    serve_apart,
    serve_together,
    start,
)
from helpers.inference.ranks.handover import Prefilled, Sender
from helpers.inference.ranks.streams import Arrival, Stream, Streams
from helpers.models.gpt import GPTConfig, build
from helpers.plans.decode_traffic import handover_bytes
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from tests.inference.conftest import alone, noisy

CONFIG = GPTConfig(vocab=19, context=64, width=16, heads=4, kv_heads=2, layers=2)
REQUESTS = [
    Arrival(prompt=(1, 2, 3), new_tokens=30),
    Arrival(prompt=(4,), new_tokens=1, at=0.02),
    Arrival(prompt=tuple(n % 19 for n in range(40)), new_tokens=5, at=0.03),
    Arrival(prompt=(7, 8, 9, 10, 11), new_tokens=25),
    Arrival(prompt=(5, 5), new_tokens=12, at=0.01),
]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2, device="cpu") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def model():
    return noisy(CONFIG)


@pytest.mark.parametrize("blocks", [12, 40], ids=["one long request at a time", "room for all"])
@pytest.mark.parametrize("serve", [serve_together, serve_apart])
def test_tokens_are_those_of_one_process(cluster, model, serve, blocks):
    ranks = cluster.run(serve, model=model, requests=REQUESTS, blocks=blocks, block_size=4)
    every = Streams.of_all(ranks)
    assert {n: s.tokens for n, s in every.streams.items()} == {
        n: alone(model, request.prompt, request.new_tokens) for n, request in enumerate(REQUESTS)
    }
    for request, stream in zip(REQUESTS, every.streams.values(), strict=True):
        assert stream.arrival == request.at <= stream.times[0] + 1e-3  # of one machine's clocks
        assert stream.times == sorted(stream.times)
        assert len(stream.times) == request.new_tokens
    if serve is serve_together:
        assert [list(rank.streams) for rank in ranks] == [[0, 4, 2], [3, 1]]
        return
    assert (ranks[0].streams, list(ranks[1].streams)) == ({}, [0, 3, 4, 1, 2])
    assert set(ranks[1].interrupted) == {0}  # nobody waits for a prompt
    sizes = {"layers": 2, "key_heads": 2, "head_width": 4, "block_size": 4, "number_bytes": 8}
    assert ranks[0].handed == {
        n: handover_bytes(tokens=len(request.prompt), **sizes) for n, request in enumerate(REQUESTS)
    }


def test_together_a_prompt_interrupts_the_streams_of_its_rank(cluster, model):
    """Both prompts are there at the beginning, so the second one is read between two steps."""
    requests = [Arrival(prompt=(1, 2, 3), new_tokens=4), Arrival(prompt=(9,), new_tokens=1)]
    requests += [replace(request, prompt=request.prompt * 5) for request in requests]
    ranks = cluster.run(serve_together, model=model, requests=requests, blocks=40)
    assert [rank.interrupted for rank in ranks] == [[15, 0, 0], []]


def test_a_first_token_is_there_when_its_prompt_has_been_read(model, monkeypatch):
    """Every look at the clock takes a second: first to see the arrival, then after the prompt."""
    monkeypatch.setattr(apart, "start", lambda worker: partial(next, itertools.count(1.0)))
    requests = [Arrival(prompt=(1, 2, 3), new_tokens=3, at=0.5)]
    worker = SimpleNamespace(rank=0, world_size=1)
    streams = serve_together(worker, model=model, requests=requests, blocks=4).streams
    assert streams[0].times == [2.0, 4.0, 6.0]


def test_blocks_come_back(model):
    rank = Rank(model, [Arrival(prompt=(1, 2, 3), new_tokens=6)] * 2, 4, 4)
    assert rank.needed(0) == 2  # 8 tokens are read; the last new one is not
    for number in (0, 1):
        assert rank.has_room(number)
        rank.admit(number, *rank.read(number), 0.0)
    assert not rank.has_room(0)
    for _ in range(5):
        rank.step(lambda: 1.0)
    assert not rank.running
    assert rank.paged.free_blocks == 4


def test_the_prefill_rank_waits_for_each_arrival(model, monkeypatch):
    slept, sent = [], []

    class Sent:
        def send(self, number, sequence, token):
            sent.append(number)
            return 7

        def finish(self):
            sent.append("end")

    monkeypatch.setattr(time, "sleep", slept.append)
    rank = Rank(model, REQUESTS, 40, 4)
    read_all(rank, Sent(), lambda: 0.015)
    assert sent == [0, 3, 4, 1, 2, "end"]
    assert slept == pytest.approx([0, 0, 0, 0.005, 0.015])
    assert rank.result.handed == dict.fromkeys(range(5), 7)
    assert rank.paged.free_blocks == 40


class Scripted:
    """An inbox of prompts that arrive one after the other; it keeps whether it was to wait."""

    def __init__(self, *arrivals):
        self.arrivals, self.waits, self.ended = list(arrivals), [], False

    def take(self, wait):
        self.waits.append(wait)
        yield from self.arrivals.pop(0) if self.arrivals else ()
        self.ended = not self.arrivals


def prefilled(model, requests):
    source = Rank(model, requests, 8, 4)
    for number in range(len(requests)):
        sequence, token = source.read(number)
        blocks = source.paged.store.memory[sequence.table].clone()
        yield Prefilled(number=number, length=sequence.length, token=token, blocks=blocks)


def test_streams_go_on_while_blocks_are_copied(model, monkeypatch):
    """The second copy ends only after the first stream has its third token."""
    requests = [Arrival(prompt=(1, 2, 3), new_tokens=4), Arrival(prompt=(4, 5), new_tokens=3)]
    first, second = prefilled(model, requests)
    rank, third, copy_to = Rank(model, requests, 8, 4), threading.Event(), Prefilled.copy_to
    rank.paged.store.memory.fill_(torch.nan)  # a copy fills every number of its blocks

    def late(one, sequence):
        assert one.number == 0 or third.wait(5), "the stream waits for the copy"
        copy_to(one, sequence)

    def clock():
        if len(rank.result.streams[0].tokens) == 2:  # and the third is computed
            third.set()
        return 0.0

    monkeypatch.setattr(Prefilled, "copy_to", late)
    rank.result.streams[0] = Stream(0.0)  # for the clock of the first admission
    continue_all(rank, Scripted([first], [second]), clock)
    assert {n: s.tokens for n, s in rank.result.streams.items()} == {
        n: alone(model, request.prompt, request.new_tokens) for n, request in enumerate(requests)
    }


def test_a_prompt_that_is_copied_counts_as_running(model):
    requests = [Arrival(prompt=(1, 2, 3), new_tokens=4)] * 2
    rank = Rank(model, requests, 3, 4)
    rank.paged.store.memory.fill_(1)
    rank.place(next(prefilled(model, requests)), SimpleNamespace(submit=lambda *_: None))
    assert not rank.has_room(1)
    assert (rank.paged.store.memory == 1).all()  # a block that a copy fills is not cleared before


def test_the_decoding_rank_waits_for_prompts_only_if_it_has_nothing_to_do(model):
    requests = [Arrival(prompt=(1, 2, 3), new_tokens=4), Arrival(prompt=(4, 5), new_tokens=3)]
    arrived = list(prefilled(model, requests))
    rank = Rank(model, requests, 2, 4)  # room for one of them at a time
    inbox, times = Scripted([], arrived[:1], [], arrived[1:]), iter(range(100))
    continue_all(rank, inbox, lambda: next(times))
    # nothing; the first arrives; then it is decoded in three steps, in which the second arrives
    assert inbox.waits == [True, True, False, False, False, False]
    assert {n: s.tokens for n, s in rank.result.streams.items()} == {
        n: alone(model, request.prompt, request.new_tokens) for n, request in enumerate(requests)
    }
    assert rank.result.streams[0].times[-1] < rank.result.streams[1].times[0]
    assert rank.paged.free_blocks == 2


def test_dropout_is_off_on_each_rank():
    model = build(replace(CONFIG, dropout=0.5), 0, torch.float64).train()
    assert not Rank(model, REQUESTS, 40, 4).model.training
    assert Rank(model, REQUESTS, 40, 4).paged.store.memory.dtype is torch.float64


def test_all_clocks_begin_when_the_last_rank_is_ready(cluster):
    def begin(worker):
        time.sleep(0.3 * worker.rank)
        clock = start(worker)
        return time.time() - clock()

    origins = cluster.run(begin)
    assert origins[0] == pytest.approx(origins[1], abs=0.1)


def test_no_requests(cluster, model):
    for serve in (serve_together, serve_apart):
        ranks = cluster.run(serve, model=model, requests=[], blocks=4)
        assert Streams.of_all(ranks) == Streams({}, [], {})


@pytest.mark.parametrize("serve", [serve_together, serve_apart])
@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Arrival(prompt=(), new_tokens=3), "request 1 has 0 tokens and asks for 3; both must be"),
        (Arrival(prompt=(1,), new_tokens=0), "request 1 has 1 tokens and asks for 0"),
        (Arrival(prompt=(1,) * 60, new_tokens=6), "request 1 has 66 tokens, the context is 64"),
        (Arrival(prompt=(1,) * 30, new_tokens=4), "request 1 needs 9 blocks, but there are 8"),
    ],
)
def test_requests_that_do_not_fit(cluster, model, serve, request_, said):
    with pytest.raises(WorkerError, match=said):
        cluster.run(serve, model=model, requests=[REQUESTS[0], request_], blocks=8, block_size=4)


def test_apart_needs_two_ranks(model):
    with Cluster(1, device="cpu") as one:
        with pytest.raises(WorkerError, match="needs two ranks, not 1"):
            one.run(serve_apart, model=model, requests=[], blocks=4)
        ranks = one.run(serve_together, model=model, requests=REQUESTS[:1], blocks=16)
        assert ranks[0].streams[0].tokens == alone(model, REQUESTS[0].prompt, 30)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_and_the_next_call_works(cluster, model, victim):
    def killed(worker, **given):
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        if worker.rank == victim:
            if victim:
                Rank.step = die
            else:
                Sender.finish = die
        return serve_apart(worker, **given)

    given = {"model": model, "requests": REQUESTS, "blocks": 40}
    with pytest.raises(WorkerError, match=f"rank {victim} was killed by SIGKILL"):
        cluster.run(killed, timeout=20, **given)
    ranks = cluster.run(serve_apart, **given)
    assert ranks[1].streams[3].tokens == alone(model, REQUESTS[3].prompt, 25)
