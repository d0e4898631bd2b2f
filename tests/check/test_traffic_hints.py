"""What the checks say about messages: which mistake, on which rank, and a hint for each."""

import pytest

from helpers.check import traffic
from helpers.check.traffic import Call, explain, only_messages
from helpers.check.verdict import NotRight, Verdict


def runs(*calls, unwaited=(0, 0, 0)):
    """What ranks that made these calls leave behind."""
    return calls, unwaited


SEND, RECV = Call("send", 2, 8), Call("recv", 0, 8)
SUM = Call("all_reduce", None, 64)


@pytest.mark.parametrize(
    ("seen", "finding", "hint"),
    [
        (runs([SEND], [SUM], [RECV]), "rank 1 called the collective all_reduce", "Messages only"),
        (runs([SEND], [], [RECV, SUM]), "rank 2 called the collective all_reduce", "To build"),
        (
            runs([SEND], [], [RECV], unwaited=(0, 0, 2)),
            "rank 2 returned before 2 of its messages had been waited for",
            "only begin",
        ),
        (
            runs([SEND], [], [RECV], unwaited=(0, 1, 0)),
            "rank 1 returned before 1 of its messages had been waited for",
            "only begin",
        ),
        (
            runs([SEND], [], [Call("recv", 0, 4)]),
            "rank 0 sent 8 bytes, and rank 2 received them into 4",
            "How large is the piece",
        ),
    ],
)
def test_messages_alone_all_waited_for_and_of_one_size(seen, finding, hint):
    with pytest.raises(NotRight) as error:
        only_messages(*seen)
    assert error.value.finding == finding
    assert hint in error.value.hint
    only_messages(*runs([SEND], [], [RECV]))


SIZES = "The tensors are not of one size"


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("rank 1 was killed by SIGABRT", "larger than the tensor"),
        (f"ValueError: {traffic.NOT_ITSELF}: rank 1", "it has already"),
        ("ValueError: the source should not be the same as the rank", "it has already"),
        ("ValueError: there is no rank 4: of 4, the last is 3", "numbered from 0"),
        ("RuntimeError: output with shape [2] doesn't match the broadcast shape [3]", SIZES),
        ("RuntimeError: The size of a must match the size of b", SIZES),
        ("ZeroDivisionError: division by zero", ""),
    ],
)
def test_what_breaks_off_gets_a_hint(finding, hint):
    found = explain(Verdict("swap", "wrong", finding))
    assert (found.exercise, found.status, found.finding) == ("swap", "wrong", finding)
    assert found.hint.startswith(hint) if hint in ("", SIZES) else hint in found.hint
    assert explain(Verdict("swap", "wrong", finding, "My own.")).hint == "My own."


def test_a_verdict_that_is_not_wrong_stays_as_it_is():
    for status in ("passed", "not written yet"):
        verdict = Verdict("swap", status, "killed by SIGABRT; no sign of life")
        assert explain(verdict) is verdict


HANG = """with 3 ranks: no sign of life from any rank for 10 s: a hang
rank 0 was waiting in {0}, line 77 of /x/helpers/check/watch.py, in __torch_dispatch__: out = f()
  File "/x/helpers/check/week01/ring.py", line 30, in run_ring
    observed(solve)
  Cell In[4], line 3, in outer
    ring(worker)
  File "/home/ann/mine.py", line 12, in ring
    dist.{0}(piece, right)
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2, in {0}
    pg.{0}(x)
rank 1 was waiting in {1}, line 5 of Cell In[4], in ring: dist.{1}(piece, left)
  Cell In[4], line 5, in ring
    dist.{1}(piece, left)
rank 2 was {2}"""


def hang(*doing):
    return explain(Verdict("ring", "wrong", HANG.format(*doing), "Of a hang in general."))


def test_of_a_hang_each_rank_s_own_line_is_shown():
    """The outermost line of the student, where the check's own file would stand."""
    assert hang("send", "recv", "done").finding.splitlines() == [
        "with 3 ranks: no sign of life from any rank for 10 s: a hang",
        "rank 0 was waiting in send, line 3 of Cell In[4], in outer: ring(worker)",
        "rank 1 was waiting in recv, line 5 of Cell In[4], in ring: dist.recv(piece, left)",
        "rank 2 was done",
    ]
    last = '{}: no sign of life\nrank 0 was in recv, line 7 of watch.py, in f\n  File "a.py", '
    found = explain(Verdict("ring", "wrong", last.format("with 1 rank") + "line 9, in ring"))
    assert found.finding.splitlines()[1] == "rank 0 was in recv, line 9 of a.py, in ring: "


WAITS = "waiting in {}, line 5 of a.py, in ring: x".format


@pytest.mark.parametrize(
    ("doing", "hint"),
    [
        (("send", "send", WAITS("send")), "Which rank receives?"),
        (("recv", "recv", WAITS("recv")), "Which rank sends first?"),
        (("send", "recv", "done"), "Some ranks have returned"),
        (("recv", "recv", "done"), "Some ranks have returned"),
        (("send", "recv", WAITS("send")), "Ranks wait for each other"),
        (("recv", "recv", "running, line 5 of a.py, in ring: x"), "Ranks wait for each other"),
        (("recv", "recv", "not answering"), "Ranks wait for each other"),
    ],
)
def test_the_hint_of_a_hang_depends_on_where_all_ranks_wait(doing, hint):
    assert hint in hang(*doing).hint


def test_a_hang_that_is_proved_gets_the_same_hint():
    proved = "with 2 ranks: a hang: rank 0 waits in send for rank 1; rank 1 in send for rank 0"
    lines = "".join(f"\nrank {rank} was {WAITS('send')}" for rank in range(2))
    assert "Which rank receives?" in explain(Verdict("ring", "wrong", proved + lines)).hint


def test_ranks_that_wait_for_requests():
    lines = "".join(f"rank {rank} was running, line 5 of a.py, in f: x\n" for rank in range(3))
    found = explain(Verdict("ring", "wrong", "with 3 ranks: no sign of life\n" + lines))
    assert "For each `isend`" in found.hint
