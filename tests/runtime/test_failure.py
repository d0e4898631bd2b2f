"""Which of several failures is the cause, and how it is told."""

import os
import pickle
import threading
from types import SimpleNamespace

import pytest

from helpers.runtime import report
from helpers.runtime.failure import (
    CannotStart,
    Failure,
    ServerLost,
    WorkerError,
    blame,
    blame_hang,
    culprit,
)
from helpers.runtime.mistakes import DIFFER
from helpers.runtime.report import LONGEST, describe, shortened

CONSEQUENCES = [
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
    "[127.0.0.1]:24573",
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Read error: Connection reset by peer",
    "writev [127.0.0.1]:2345: Broken pipe",
    "NCCL communicator was aborted on rank 1.",
    "Timed out waiting 1800000ms for recv operation to complete",
    "Connection refused",
    "Connection closed",
    "connection reset",
    "the peer has gone",
    "Socket closed",
    "STORE TIMEOUT",
    "socket error: 104",
    "NCCL error: remote process exited or there was a network error",
    "wait timeout after 300000ms: the store has no such key, timeout",
    "store->wait(keys) failed",
]


def dump(file="/x/cell.py", line=3, name="train", inside=""):
    frames = f'  File "{file}", line {line} in {name}\n'
    if inside:
        torch = "/site-packages/torch/distributed/distributed_c10d.py"
        frames = f'  File "{torch}", line 9 in {inside}\n{frames}'
    return f"Current thread 0x01 (most recent call first):\n{frames}"


@pytest.mark.parametrize("complaint", CONSEQUENCES)
def test_a_neighbour_that_complains_first_is_not_blamed(complaint):
    first = Failure(rank=0, when=1.0, kind="RuntimeError", message=complaint)
    assert first.consequence
    late = Failure(rank=2, when=1.1, kind="ValueError", message="the cause")
    assert culprit([first, late]) is late
    for status in (-9, 0):
        died = Failure(rank=1, when=1.2, status=status)
        assert culprit([first, late, died]) is died


def test_the_first_of_several_causes():
    failures = [Failure(rank=r, when=3.0 - r, kind="ValueError", message=str(r)) for r in range(3)]
    assert culprit(failures).rank == 2


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "rank 1 ended with exit code 0 before it returned"),
        (3, "rank 1 ended with exit code 3"),
        (70, "rank 1 could not start"),
        (71, "rank 1 lost its connection"),
        (-9, "rank 1 was killed by SIGKILL: out of memory?"),
        (-11, "rank 1 was killed by SIGSEGV"),
        (-7, "/dev/shm"),
        (-6, "SIGABRT: compiled code gave up"),
        (-63, "rank 1 was killed by signal 63"),
    ],
)
def test_deaths(status, said):
    assert said in Failure(rank=1, when=0, status=status).headline()


def test_the_headline_is_one_line():
    failure = Failure(rank=1, when=0, kind="ValueError", message="\nfirst\nsecond\nthird")
    assert failure.headline() == "rank 1 raised ValueError: first"
    failure.message = "x" * 5000
    assert failure.headline() == f"rank 1 raised ValueError: {'x' * 1000}"
    failure.message = ""
    assert failure.headline() == "rank 1 raised ValueError"
    left = Failure(rank=1, when=0, kind="SystemExit", message="3")
    assert left.headline() == "rank 1 called sys.exit(3); return from it instead"
    unable = Failure(rank=1, when=0, status=70, message="no memory")
    assert unable.headline() == "rank 1 could not start: no memory"


def test_only_complaints_about_another_end_are_consequences():
    for message in ("division by zero", "no such store", "wait a moment", "the timeout is 3"):
        assert not Failure(rank=1, when=0, kind="ValueError", message=message).consequence
    assert not Failure(rank=1, when=0, status=-9, message="connection closed").consequence
    assert Failure(rank=1, when=0, kind="BrokenPipe: broken pipe").consequence


def test_what_the_others_were_doing():
    failures = [Failure(rank=1, when=0, kind="ValueError", message="no", traceback="the line")]
    whereabouts = {0: "done", 1: "", 2: "", 3: ""}
    stacks = {2: dump(inside="all_reduce"), 3: ""}
    error = blame(failures, whereabouts, stacks)
    assert (error.rank, error.kind, error.traceback) == (1, "exception", "the line")
    assert error.others[0] == "done"
    assert error.others[2] == "waiting in all_reduce, line 3 of /x/cell.py, in train"
    assert error.others[3] == "not answering"
    assert "rank 2 was waiting in all_reduce" in str(error)


def test_the_same_failure_everywhere_is_told_once():
    failures = [Failure(rank=r, when=r, kind="ValueError", message="no") for r in range(4)]
    error = blame(failures, dict.fromkeys(range(4), ""), {})
    assert error.rank == 0
    assert not error.others
    assert str(error).endswith("ranks 1, 2, 3 failed the same way")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"kind": "A", "message": "x"}, {"kind": "A", "message": "x"}, True),
        ({"kind": "A", "message": "x"}, {"kind": "B", "message": "x"}, False),
        ({"kind": "A", "message": "x"}, {"kind": "A", "message": "y"}, False),
        ({"kind": "A", "message": "x", "verb": "did"}, {"kind": "A", "message": "x"}, True),
        ({"status": -9}, {"status": -11}, False),
        ({"status": -9}, {"status": -9}, False),
        ({"status": 0}, {"status": 0}, False),
        ({"status": 1}, {"status": 2}, False),
    ],
)
def test_which_failures_are_the_same(first, second, same):
    """Exceptions of one kind and one message; each death is told on its own."""
    failures = [Failure(rank=r, when=r, **how) for r, how in enumerate((first, second))]
    error = blame(failures, {0: "", 1: "", 2: "done"}, {})
    told = failures[1].headline().removeprefix("rank 1 ")
    assert error.others == {2: "done"} | ({} if same else {1: f"failing too: {told}"})
    assert str(error).endswith("rank 1 failed the same way") == same


@pytest.mark.parametrize("status", [-11, 0])
def test_a_death_comes_with_its_last_stack_and_is_nobody_s_equal(status):
    failures = [
        Failure(rank=1, when=2, status=status, hint="its own advice"),
        Failure(rank=0, when=1, kind="ValueError", message="no"),
    ]
    error = blame(failures, {0: "", 1: ""}, {1: dump(line=7)})
    assert (error.rank, error.kind) == (1, "died")
    assert error.traceback == (
        'Its last Python stack (most recent call last):\n  File "/x/cell.py", line 7, in train'
    )
    assert error.others == {0: "failing too: raised ValueError: no"}
    assert error.note == "its own advice"


TRACE = """Traceback (most recent call last):
  File "/x/cell.py", line 5, in f
  File "/site-packages/torch/distributed/distributed_c10d.py", line 9, in send
ValueError: no
"""


def test_the_sentence_about_a_wrong_call_is_the_culprit_s():
    """A neighbour's complaint has come first."""
    told = {"traceback": TRACE, "kind": "ValueError"}
    complaint = Failure(rank=0, when=1, message="Connection closed by peer", **told)
    cause = Failure(rank=1, when=2, message="Global rank 7 is not part of group 0", **told)
    error = blame([complaint, cause], {0: "", 1: ""}, {})
    assert str(error).startswith("rank 1 names rank 7 in send at line 5 of cell.py, and rank 7 is")


def test_ranks_whose_calls_differ_are_named_by_the_sentence_alone():
    """Each side has written it, in its own words."""
    failures = [Failure(rank=r, when=r, kind=DIFFER, message=f"side {r}") for r in range(2)]
    error = blame(failures, {0: "", 1: "", 2: "done"}, {})
    assert (error.rank, error.others, error.note) == (0, {2: "done"}, "")


def test_the_cause_is_the_rank_s_own_exception():
    told = {"rank": 0, "when": 0, "kind": "KeyError", "message": "'x'", "hint": "look there"}
    failures = [Failure(**told, exception=pickle.dumps(KeyError("x")))]
    failures += [Failure(**told | {"rank": 1, "when": 1})]
    error = blame(failures, {0: "", 1: ""}, {})
    assert type(error.__cause__) is KeyError
    assert error.__cause__.args == ("x",)
    assert error.note == "look there\nrank 1 failed the same way"
    lost = blame([Failure(**told, exception=b"not a pickle")], {0: ""}, {})
    assert lost.__cause__ is None


def test_a_hang_names_the_odd_one_out():
    waiting, busy = dump(inside="all_reduce"), dump(line=7)
    error = blame_hang(5, {0: "", 1: "", 2: ""}, {0: waiting, 1: busy, 2: waiting})
    assert error.rank == 1
    assert error.kind == "hang"
    assert "only rank 1 is not in a collective" in str(error).split("\n")[0]
    assert "Different collectives" not in error.note  # rank 1 only has to go on


def test_a_hang_in_different_collectives():
    waiting, busy = dump(inside="all_reduce"), dump(line=7)
    two = blame_hang(5, {0: "", 1: "", 2: ""}, {0: waiting, 1: busy, 2: busy})
    assert (two.rank, "only rank" in str(two)) == (None, False)
    error = blame_hang(5, {0: "", 1: ""}, {0: dump(inside="all_reduce"), 1: dump(inside="send")})
    assert error.rank is None
    assert "different collectives" in str(error).split("\n")[0]
    assert "debug=True" in str(error)


def test_a_hang_in_one_collective():
    """Nobody is to blame where all wait for the same; or some for those that have returned."""
    together = blame_hang(5, {0: "", 1: ""}, dict.fromkeys(range(2), dump(inside="all_reduce")))
    assert str(together).split("\n")[0] == "no sign of life from any rank for 5 s: a hang"
    assert "Different collectives" in together.note
    left = blame_hang(5, {0: "done", 1: ""}, {1: dump(inside="all_reduce")})
    assert "for others that have returned" in str(left).split("\n")[0]
    assert "rank 0 was done" in left.traceback
    assert (together.first, left.first) == (0, 1)  # what a debugger enters
    busy = blame_hang(5, {0: "", 1: ""}, dict.fromkeys(range(2), dump()))
    assert str(busy).split("\n")[0] == "no sign of life from any rank for 5 s: a hang"
    assert "timeout=" in busy.note
    assert "Different collectives" not in busy.note


def test_a_proved_hang_blames_nobody_and_asks_for_no_patience():
    error = blame_hang("a proof", {0: "", 1: ""}, {0: dump(inside="send"), 1: dump(line=7)})
    assert str(error).startswith("a proof\n")
    assert error.rank is None
    assert error.note == ""
    assert blame_hang("a proof", {0: ""}, {0: dump()}).note == ""


def test_what_a_gpu_is_in_is_told_beside_the_stack_that_does_not_show_it():
    """Rank 1 reads a loss: its stack alone looks as if it computed."""
    stacks = {0: dump(inside="all_reduce"), 1: dump(line=7), 2: dump(line=7)}
    error = blame_hang(5, dict.fromkeys(stacks, ""), stacks, {1: "NCCL's broadcast"})
    assert error.rank == 2
    assert "only rank 2 is not in a collective" in str(error)
    assert error.traceback.count("  its GPU was in NCCL's broadcast\n") == 1


def test_errors_travel_with_their_attributes():
    for error in (
        WorkerError("no", kind="died", rank=3, traceback="t", others={1: "x"}),
        ServerLost("Killed"),
    ):
        back = pickle.loads(pickle.dumps(error))
        assert str(back) == str(error)
        assert (back.kind, back.rank, back.others) == (error.kind, error.rank, error.others)


def test_of_three_ranks_one_alone_computes_or_some_have_returned():
    """Ranks that have returned are no candidates."""
    waiting, busy = dump(inside="all_reduce"), dump(line=7)
    alone = blame_hang(0.5, {0: "", 1: "done", 2: "done"}, {0: busy})
    assert alone.rank is None
    assert str(alone).split("\n")[0] == "no sign of life from any rank for 0.5 s: a hang"
    odd = blame_hang(5, {2: "", 1: "", 0: "done"}, {1: busy, 2: waiting})
    assert (odd.rank, odd.first) == (1, 1)
    lines = [line for line in odd.traceback.splitlines() if line.startswith("rank")]
    assert [line[:10] for line in lines] == ["rank 0 was", "rank 1 was", "rank 2 was"]
    assert "line 7, in train" in odd.traceback
    assert odd.note.splitlines()[0].startswith("Longer work")


def test_an_error_is_told_in_this_order_and_in_a_notebook_alone():
    error = WorkerError("first", kind="died", traceback="its lines\n", others={2: "b", 0: "a"})
    assert str(error) == "first\nits lines\nMeanwhile\n  rank 0 was a\n  rank 2 was b"
    error.add_note("and more")
    assert error._render_traceback_() == [f"WorkerError: {error}", "and more"]
    lost = str(ServerLost("out of memory")).splitlines()
    assert lost[1:] == ["out of memory", "The next call starts another: run the cell again."]
    assert str(CannotStart("so")) == "rank 0 could not start: so"


def test_an_error_enters_its_own_ranks():
    entered = []
    error = WorkerError("x", kind="hang")
    error.kept = SimpleNamespace(debug=entered.append)
    error.debug()
    error.debug(2)
    assert entered == [None, 2]
    assert pickle.loads(pickle.dumps(error)).kept is None  # they belong to this process


def fails(error):
    raise error


def caught(error) -> BaseException:
    try:
        fails(error)
    except BaseException as raised:
        return raised


def test_a_plain_error():
    error = caught(KeyError("missing"))
    found = describe(error)
    assert (found["kind"], found["message"]) == ("KeyError", "'missing'")
    assert "in caught" in found["traceback"]
    assert "in fails" in found["traceback"]
    back = pickle.loads(found["exception"])
    assert (type(back), back.args) == (KeyError, ("missing",))
    assert found["when"] <= describe(error)["when"]


def test_the_first_frames_of_the_caller_are_left_out():
    """All of them, and no later frame: here every frame is of this file."""
    assert "File" not in describe(caught(KeyError()), skip=__file__)["traceback"]
    assert "in fails" in describe(caught(KeyError()), skip="another.py")["traceback"]


def test_a_long_text_keeps_its_beginning_and_its_end():
    text = "begin" + "x" * 3 * LONGEST + "end"
    short = shortened(text)
    assert short.startswith("beginx")
    assert short.endswith("xend")
    assert f"[… {len(text) - LONGEST:,} more characters …]" in short
    assert shortened("y" * LONGEST) == "y" * LONGEST


class Odd(Exception):
    """Pickles, but cannot be rebuilt from its arguments; and has no text."""

    def __init__(self, one, two):
        super().__init__(one)

    def __str__(self):
        raise ValueError


def test_an_error_that_cannot_travel_is_described_all_the_same():
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc") else 0
    for error in (Odd(1, 2), KeyError(threading.Lock()), ValueError("x" * 200_000)):
        assert describe(caught(error))["exception"] is None
    assert "__str__ fails" in report.text(Odd(1, 2))
    for error in (ValueError("x" * 200_000), ExceptionGroup("many", [KeyError("k" * 20_000)])):
        found = describe(caught(error))
        assert max(len(found["message"]), len(found["traceback"])) < LONGEST + 100
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
