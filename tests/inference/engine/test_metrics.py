"""The figures of a run, from times that are written down here."""

import math

import pytest

from helpers.inference.engine.metrics import Outcome, Served, Span, Step
from helpers.inference.engine.plan import Work
from helpers.inference.engine.policies import Continuous


def outcome(number, arrival, times, reason="length", ended=None, **others):
    return Outcome(
        number=number,
        prompt=5,
        arrival=arrival,
        tokens=tuple(range(len(times))),
        times=tuple(times),
        reason=reason,
        ended=ended if ended is not None else times[-1],
        spans=others.pop("spans", ()),
        **others,
    )


ONE = outcome(0, 1.0, [3.0, 4.0, 7.0, 8.0], spans=(Span(kind="waiting", start=1.0, end=2.0),))
TWO = outcome(1, 2.0, [8.0], reason="stop", preempted=2)
NONE = outcome(2, 3.0, [], reason="error: the prompt is empty: …", ended=3.0)
STEPS = [
    Step(start=2, end=3, work=Work(prefilled=5), running=1, waiting=0, used=2, reserved=4),
    Step(start=3, end=4, work=Work(decoded=1), running=1, waiting=1, used=3, reserved=4),
    Step(start=6, end=8, work=Work(decoded=1, prefilled=5, padding=1), running=2, waiting=0,
         used=5, reserved=5, preempted=1),
]  # fmt: skip


def served(*outcomes, steps=STEPS):
    return Served(policy=Continuous(4), requests=outcomes, steps=steps, blocks=8)


def test_a_request():
    assert ONE.first == 2
    assert ONE.per_token == pytest.approx(5 / 3)
    assert ONE.stutter == 3
    assert ONE.latency == 7


def test_a_request_with_one_token_or_none():
    assert TWO.first == 6
    assert math.isnan(TWO.per_token)
    assert math.isnan(TWO.stutter)
    assert math.isnan(NONE.first)
    assert NONE.latency == 0


def test_a_run():
    run = served(ONE, TWO, NONE)
    assert run.tokens == 5
    assert run.seconds == 7  # from 1 to 8
    assert run.throughput == pytest.approx(5 / 7)
    assert repr(run) == (
        "Continuous(most=4): 3 requests (1 length, 1 stop, 1 error), 5 tokens in 7 s and 3 steps, "
        "0.714 tokens/s"
    )


def test_a_run_of_nothing():
    run = served(steps=[])
    assert (run.tokens, run.seconds) == (0, 0)
    assert math.isnan(run.throughput)
    assert run.frame().empty
    assert run.percentiles().isna().all(axis=None)
    assert run._repr_png_()[0].startswith(b"\x89PNG")


def test_percentiles_leave_out_what_is_missing():
    table = served(ONE, TWO, NONE).percentiles([0.5, 1.0])
    assert list(table.index) == ["p50", "p100"]
    assert list(table["first token"]) == [4.0, 6.0]
    assert list(table["per token"]) == pytest.approx([5 / 3, 5 / 3])
    assert list(table["stutter"]) == [3.0, 3.0]
    assert list(table["latency"]) == [6.5, 7.0]


def test_percentiles_are_interpolated():
    table = served(outcome(0, 0.0, [0.0]), NONE, outcome(1, 0.0, [10.0])).percentiles([0.25, 0.99])
    assert list(table["first token"]) == pytest.approx([2.5, 9.9])
    assert list(served().percentiles().index) == ["p50", "p90", "p99"]


def test_the_frame_has_a_row_for_each_request():
    frame = served(ONE, TWO, NONE).frame()
    assert list(frame.index) == [0, 1, 2]
    row = frame.loc[1]
    assert (row["arrival"], row["prompt"], row["tokens"], row["preempted"]) == (2.0, 5, 1, 2)
    assert (row["first token"], row["latency"], row["reason"]) == (6.0, 6.0, "stop")
    assert frame.loc[0, "stutter"] == 3
    assert frame.loc[0, "per token"] == pytest.approx(5 / 3)
    assert list(frame["tokens"]) == [4, 1, 0]
    assert list(frame["preempted"]) == [0, 2, 0]


def test_the_picture_shows_requests_and_blocks():
    picture = served(ONE, TWO, NONE).plot()
    rows, blocks = picture.axes
    assert rows.get_title() == "Continuous(most=4)"
    assert rows.get_ylabel() == "3 requests"
    assert [text.get_text() for text in blocks.get_legend().get_texts()] == ["reserved", "used"]
    reserved, used = (list(patch.get_data().values) for patch in blocks.patches)
    assert (reserved, used) == ([0, 4, 4, 0, 5], [0, 2, 3, 0, 5])
    assert "all 8 blocks" in [text.get_text() for text in blocks.texts]
    assert repr(picture) == (
        "Continuous(most=4). 3 requests over 2 seconds, one row each: waiting. Blocks reserved: at "
        "most 5 of 8. Blocks used: at most 5 of 8."
    )
    (span,) = rows.collections[0].get_paths()
    (left, _), (right, _) = span.get_extents().get_points()
    assert (left, right) == (1, 2)
    assert repr(served(ONE).plot()) == served(ONE)._repr_png_()[1]["alt"]
    assert served(ONE).plot(title="mine").axes[0].get_title() == "mine"
