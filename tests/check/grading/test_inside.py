"""The program in the sandbox, here without its walls: what it answers to each order."""

import pickle

import pytest

from helpers.check.grading import inside, plain
from helpers.check.grading.stand_in import StandIn
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError


def answered(kind, *given):
    return plain.unpack(inside.answer(pickle.dumps((kind, given))))


def called(body, *arguments):
    """The answer to a call of a function with this body."""
    assert answered("define", "probe", [f"def probe(*given):\n    {body}"]) == ["returned", None]
    return answered("call", StandIn("probe"), arguments)


def test_a_call_returns_the_answer_and_what_became_of_the_arguments():
    assert called("given[0].append(3); return len(given)", [1], 2) == [
        "returned",
        (2, ([1, 3], 2)),
    ]


def test_definitions_that_fail_are_left_out():
    sources = ["import no_such_module", "raise SystemExit", "raise KeyboardInterrupt"]
    sources += ["NAME = __name__", "def probe(): return NAME"]
    assert answered("define", "probe", sources) == ["returned", None]
    assert answered("call", StandIn("probe"), ())[1][0] == "__main__"


@pytest.mark.parametrize("source", ["probe = 3", "def other(): pass", "raise SystemExit(7)"])
def test_a_notebook_without_the_function(source):
    why = "; SystemExit: 7" * ("Exit" in source)
    text = f"your function raised NameError: the notebook defines no function probe{why}"
    for sources in ([source], [source, "x = 1"]):  # what fails first may be the reason
        assert answered("define", "probe", sources) == ["raised", "exception", text]


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("raise NotImplementedError", ["not written"]),
        ("raise SystemExit(3)", ["raised", "exception", "your function raised SystemExit: 3"]),
        ("raise KeyboardInterrupt", ["raised", "exception", "your function raised KeyboardInt"]),
        ("return iter([])", ["raised", "answer", "your function returned a value of type list_"]),
        ("return 1 / 0", ["raised", "exception", "your function raised ZeroDivisionError: di"]),
    ],
)
def test_what_a_call_may_end_in(body, answer):
    *kinds, text = called(body)
    assert [*kinds, text[: len(answer[-1])]] == answer


@pytest.mark.parametrize("body", ["raise ValueError({})", "return type({}, (), {{}})()"])
def test_a_long_error_is_cut(body):
    assert len(called(body.format("'x' * 9999"))[2]) == inside.MOST_TEXT


def test_what_is_no_data_is_named_whole():
    why = "this is not what the exercise asks for"
    kind = "your function returned a value of type {}, or with a part of it: " + why
    assert called("return [iter([])]")[2] == kind.format("list_iterator")
    assert called("class Own: pass\n    return Own()")[2] == kind.format("__main__.Own")
    assert inside.no_data("it is odd") == f"your function returned it is odd: {why}"


def test_errors_of_ranks_are_cut_and_a_stub_is_told_apart(monkeypatch):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(inside, "launch", fails)
    error = WorkerError("x" * 9999, kind="died")
    assert answered("ranks", len, 2, len, {}, 60) == ["raised", "died", "x" * inside.MOST_TEXT]
    error.__cause__ = NotImplementedError()
    assert answered("ranks", len, 2, len, {}, 60) == ["not written"]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2, device="cpu") as ranks:
        yield ranks


def call_on_rank(worker, solve, more):
    return solve(worker.rank + more)


@pytest.mark.parametrize(
    ("body", "timeout", "answer"),
    [
        ("return 2 * given[0]", 60, ["returned", ([20, 22], None)]),
        ("raise NotImplementedError", 60, ["not written"]),
        ("return given[0] == 11 or x", 60, ["raised", "exception", "rank 0 raised NameError"]),
        ("import time; time.sleep(60)", 0.5, ["raised", "hang", "no sign of life from any rank"]),
    ],
)
def test_on_ranks(cluster, monkeypatch, body, timeout, answer):
    def launch(run, workers, *, device, **given):
        assert (workers, device, given["timeout"]) == (2, "cpu", timeout)
        return cluster.run(run, **given)

    monkeypatch.setattr(inside, "launch", launch)
    assert answered("define", "probe", [f"def probe(*given):\n    {body}"]) == ["returned", None]
    found = answered("ranks", call_on_rank, 2, StandIn("probe"), {"more": 10}, timeout)
    if answer[0] == "raised":
        found[2] = found[2][: len(answer[2])]
    assert found == answer
