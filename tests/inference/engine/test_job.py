"""A job knows its next tokens, ends for the right reason, and accounts for all of its time."""

import pytest

from helpers.inference.engine.job import Job
from helpers.inference.engine.metrics import Span
from helpers.inference.engine.request import Request


def job(prompt=(5, 6, 7), new_tokens=4, context=100, **options):
    return Job(Request(3, prompt, new_tokens, arrival=2.0, **options), context)


def spans(of):
    return [(span.kind, span.start, span.end) for span in of.spans]


def test_the_next_tokens_are_the_prompts_and_then_its_own():
    one = job()
    assert one.next_tokens(2) == [5, 6]
    one.computed(3, "prefill", 2.0, 3.0)
    one.add(9, 3.0)
    assert (one.known, one.cached, one.next_tokens(1)) == (4, 3, [9])
    one.give_back(3.0)
    assert (one.cached, one.next_tokens(10)) == (0, [5, 6, 7, 9])


def test_progress():
    one = job()
    one.computed(3, "prefill", 2.0, 3.0)
    one.add(9, 3.0)
    seen = one.progress(blocks=2)
    assert (seen.number, seen.prompt, seen.known, seen.cached, seen.blocks) == (3, 3, 4, 3, 2)
    assert seen.limit == 6  # the last token is not read


@pytest.mark.parametrize(
    ("new_tokens", "context", "limit"), [(1, 100, 3), (4, 100, 6), (4, 5, 5), (4, 3, 3)]
)
def test_the_most_that_can_be_cached(new_tokens, context, limit):
    assert job(new_tokens=new_tokens, context=context).limit == limit


@pytest.mark.parametrize(
    ("options", "tokens", "reason"),
    [
        ({}, [1, 2, 3], ""),
        ({}, [1, 2, 3, 4], "length"),
        ({"stop": [2]}, [1, 2], "stop"),
        ({"stop": [4]}, [1, 2, 3, 4], "stop"),
        ({"context": 4}, [1], ""),
        ({"context": 4}, [1, 2], "context"),
        ({"context": 3}, [1], "context"),
        ({"context": 6}, [1, 2, 3, 4], "length"),
    ],
)
def test_why_it_ends(options, tokens, reason):
    one = job(**options)
    for time, token in enumerate(tokens):
        assert not one.reason
        one.add(token, 3.0 + time)
    assert one.reason == reason
    assert one.tokens == tokens
    if reason:
        found = one.outcome()
        assert (found.reason, found.tokens, found.prompt) == (reason, tuple(tokens), 3)
        assert found.times == tuple(3.0 + time for time in range(len(tokens)))
        assert found.ended == 2.0 + len(tokens)


def test_the_first_reason_counts():
    one = job()
    one.end("cancelled", 4.0)
    one.end("length", 5.0)
    assert (one.reason, one.ended) == ("cancelled", 4.0)


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


def test_a_request_that_never_runs():
    one = job()
    one.end("cancelled", 2.0)
    assert spans(one) == []
    assert one.outcome().latency == 0


def test_jobs_are_ordered_by_arrival_then_by_number():
    early = Job(Request(9, [1], 1, arrival=1.0), 10)
    assert sorted([job(), early], key=lambda one: one.order)[0] is early
    assert job().order == (2.0, 3)
