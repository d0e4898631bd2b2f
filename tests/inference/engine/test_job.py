"""A request, the job that serves it, and the clocks: what is computed when, and why it ends."""

import time

import pytest

from helpers.inference.engine.clock import RealTime, StepCost, Virtual
from helpers.inference.engine.metrics import Span
from helpers.inference.engine.plan import Work
from helpers.inference.engine.request import Job, Request
from helpers.inference.sampling import Sampling

WORK = Work(prefilled=10, decoded=3, padding=2, read=100)


def job(prompt=(5, 6, 7), new_tokens=4, context=100, **options):
    return Job(Request(3, prompt, new_tokens, arrival=2.0, **options), context)


def spans(of):
    return [(span.kind, span.start, span.end) for span in of.spans]


@pytest.mark.parametrize(
    ("new_tokens", "context", "limit"), [(1, 100, 3), (4, 100, 6), (4, 5, 5), (4, 3, 3)]
)
def test_the_most_that_can_be_cached(new_tokens, context, limit):
    assert job(new_tokens=new_tokens, context=context).limit == limit


def test_all_of_its_time_is_accounted_for():
    one = job(new_tokens=9)
    one.computed(2, "prefill", 3.0, 4.0)
    one.computed(1, "prefill", 4.0, 5.0)
    assert one.cached == 3
    one.computed(1, "decode", 5.0, 6.0)
    one.computed(1, "decode", 7.0, 8.0)  # it was not in one step
    one.give_back(8.0)
    one.computed(5, "prefill", 10.0, 11.0)
    one.end("cancelled", 12.0)
    assert spans(one) == [
        ("waiting", 2.0, 3.0),
        ("prefill", 3.0, 5.0),
        ("decode", 5.0, 6.0),
        ("waiting", 6.0, 7.0),
        ("decode", 7.0, 8.0),
        ("preempted", 8.0, 10.0),
        ("prefill", 10.0, 11.0),
        ("waiting", 11.0, 12.0),
    ]
    assert one.outcome().spans[0] == Span(kind="waiting", start=2.0, end=3.0)
    assert one.outcome().preempted == 1


def test_virtual_time():
    clock = Virtual(StepCost(step=2.0))
    clock.start()
    assert clock.now == 0
    clock.spend(WORK)
    clock.wait(1.5)  # it is over
    assert clock.now == 2
    clock.wait(3.5)
    assert clock.now == 3.5
    clock.start()
    assert clock.now == 0


def test_any_function_is_a_cost():
    assert StepCost(step=2.0, token=0.5, read=0.01)(WORK) == 2 + 7.5 + 1
    clock = Virtual(lambda work: work.read / 10)
    clock.spend(WORK)
    clock.spend(WORK)
    assert clock.now == 20
    plain = Virtual()
    plain.spend(WORK)
    assert plain.now == 1


def test_real_time_waits_and_begins_again(monkeypatch):
    slept, times = [], iter([10.0, 12.0, 12.5, 13.0, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(time, "sleep", slept.append)
    clock = RealTime()
    assert clock.now == 2
    clock.wait(4.0)  # at 2.5
    clock.wait(1.0)  # it is over
    clock.start()
    assert clock.now == 1
    clock.spend(WORK)
    assert slept == [1.5, 0.0]


def test_what_a_request_is_given_stays_and_the_rest_is_filled_in():
    request = Request(7, [1, 2], 5)
    assert (request.number, request.prompt, request.new_tokens) == (7, (1, 2), 5)
    assert (request.arrival, request.sampling, request.seed) == (0.0, Sampling(), 7)
    assert request.stop == frozenset()
    request = Request(7, b"ab", 0, arrival=2.5, seed=0, stop=[3, 3])
    assert (request.prompt, request.seed, request.stop) == ((97, 98), 0, {3})
    assert request.arrival == 2.5


@pytest.mark.parametrize("arrival", [-1.0, float("inf"), float("nan")])
def test_an_impossible_arrival(arrival):
    with pytest.raises(ValueError, match=r"request 7 arrives at .* the run begins at 0"):
        Request(7, [1], 5, arrival=arrival)


def test_a_negative_number_of_tokens():
    with pytest.raises(ValueError, match="request 7 asks for -1 new tokens"):
        Request(7, [1], -1)
