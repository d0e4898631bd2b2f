"""Exercise of week 1, fourth part: from the ranks' reports, name the rank that failed first."""

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict

LOST = "Connection closed by peer"
LATE = "timed out"


def report(calls: str, error: str | None = None, alive: bool = True) -> dict:
    """What one rank reports: the collectives that it called, its error, and whether it answers."""
    return {"alive": alive, "error": error, "calls": calls.split()}


STEP = "all_reduce all_reduce all_reduce"
# Words, reports by rank, the rank to blame, the kind of fault.
CASES = (
    (
        "a killed process",
        [report(STEP, LOST), report(STEP, LOST), report("", alive=False), report(STEP, LOST)],
        2,
        "silent",
    ),
    (
        "an exception on one rank",
        [report(STEP, LOST), report(STEP, "ZeroDivisionError: division by zero")],
        1,
        "error",
    ),
    (
        "an exception, and a slow rank",
        [report(STEP, LOST), report("all_reduce", LOST), report(STEP, "KeyError: 'loss'")],
        2,
        "error",
    ),
    (
        "a hang",
        [report(STEP), report(STEP), report("all_reduce all_reduce"), report(STEP)],
        2,
        "behind",
    ),
    (
        "a hang that timed out",
        [report("all_reduce"), *(report(STEP, f"all_reduce {LATE}") for _ in range(3))],
        0,
        "behind",
    ),
    (
        "another collective than the others'",
        [report("all_reduce barrier all_reduce"), report("all_reduce broadcast all_reduce"),
         report("all_reduce barrier all_reduce")],
        1,
        "differs",
    ),
    (
        "another collective, and a rank that timed out",
        [report("barrier all_reduce", f"barrier {LATE}"),
         report("barrier all_reduce", f"barrier {LATE}"),
         report("barrier all_reduce", f"barrier {LATE}"), report("all_reduce all_reduce")],
        3,
        "differs",
    ),
    (
        "a killed process, after the others' errors",
        [report(STEP, alive=False), report(STEP, "RuntimeError: lost rank 0"), report(STEP, LOST)],
        0,
        "silent",
    ),
)  # fmt: skip


def name_culprit(fn) -> Verdict:
    """Check `fn(reports) -> rank`: the rank whose failure made the others fail.

    The rules, in this order: a rank that no longer answers; a rank with an error of its own; the
    rank that made the fewest calls; the rank whose calls differ from the others'.
    """
    cases = [
        (where, (reports,), {"right": r, "kind": k})
        for where, reports, r, k in (*CASES, *hidden.more(turned, 12))
    ]
    return examine_here("name_culprit", fn, cases, judge_culprit)


def turned(random):
    """One of the cases, with other names of the ranks."""
    where, reports, right, kind = random.choice(CASES)
    order = random.sample(range(len(reports)), len(reports))
    return where, [reports[rank] for rank in order], order.index(right), kind


def judge_culprit(answer, reports, right, kind):
    if not is_number(answer) or answer not in range(len(reports)):
        raise NotRight(
            f"returned {answer!r}", f"Return one rank, a number from 0 to {len(reports) - 1}."
        )
    if answer != right:
        listing = "\n".join(f"  rank {r}: {in_words(one)}" for r, one in enumerate(reports))
        raise NotRight(f"you blame rank {answer}\n{listing}", hint_culprit(reports[answer], kind))


def in_words(one) -> str:
    error = f", error {one['error']!r}" if one["error"] else ""
    answers = "answers" if one["alive"] else "does not answer"
    return f"{answers}, calls {one['calls']}{error}"


def hint_culprit(blamed, kind) -> str:
    """A hint for this kind of fault, and for the rank that was blamed wrongly."""
    error = blamed["error"] or ""
    if kind == "silent":
        return "That rank could still report. Which rank says nothing at all?"
    if LOST in error:
        return "That rank only lost a connection. Which rank has an error of its own?"
    if LATE in error:
        return "A rank that timed out was waiting for another. For which rank did it wait?"
    if kind == "error":
        return "One rank reports an error that no other rank caused. It comes before any count."
    if kind == "behind":
        return "Every rank waits for the rank that has not made the last call. Count the calls."
    return "All ranks made equally many calls. Compare the lists place by place: which one differs?"
