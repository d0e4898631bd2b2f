"""Exercises of week 1 on paper: bytes of collectives, the roofline, attention, who failed first."""

from functools import cache

import torch

from helpers.check import hidden
from helpers.check.answers import short
from helpers.check.exercise import Edit, Exercise, among
from helpers.check.number import Number
from helpers.check.sent import bytes_of_ranks
from helpers.measure.flops import flops_of
from helpers.measure.moved import moved_by

# bytes_on_the_wire

BUFFER = 1_200_000  # bytes: a multiple of 4 bytes × 2, 3 and 4 ranks; headers are small beside it
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")


def wire(collective, ranks, size):
    """The least bytes that one rank can send; for a broadcast, those of all ranks together."""
    phase = (ranks - 1) * size / ranks
    return {"all_reduce": 2 * phase, "broadcast": (ranks - 1) * size}.get(collective, phase)


def every_collective():
    many = 64 + hidden.shift(60)
    asked = [(n, BUFFER) for n in (3, 4, 2, 1)] + [(many, many * 15_625_000)]
    return [(f"{collective} of {size:,} bytes on {n} rank{'s' * (n > 1)}", (collective, n, size))
            for n, size in asked for collective in COLLECTIVES]  # fmt: skip


def kernel_counts(ranks: int) -> dict[str, int | None]:
    """The bytes that ranks really send, as the operating system counts them; None: it does not."""
    counted = bytes_of_ranks(ranks, BUFFER, *((one,) for one in COLLECTIVES))
    return {
        collective: sent and (sum(sent) if collective == "broadcast" else max(sent))
        for collective, sent in zip(COLLECTIVES, counted, strict=True)
    }


def say_bytes(found, right, collective, ranks, size) -> str:
    who = "all ranks together" if collective == "broadcast" else "one rank"
    counted = kernel_counts(ranks)[collective] if size == BUFFER else None
    told = f"the formula says {right:,.0f}"
    if counted is not None:
        told = f"{who} sent {counted:,} (the operating system counted, headers included)"
    return f"you said {found:,.10g} bytes; {told}"


PHASES = ("all_gather", "reduce_scatter", "all_to_all")
bytes_on_the_wire = Number(
    right=wire,
    unit="bytes",
    cases=every_collective,
    say=say_bytes,
    close=2e-9,
    slips=(
        (lambda b, g: b * g.ranks / max(1, g.ranks - 1),
         lambda b, g: g.size * (2 if g.collective == "all_reduce" else 1), "One too many: how many "
         "*other* ranks are there, or how many steps does it take?"),
        (lambda b, g: b / 4, "Return bytes. Did you count numbers of four bytes?"),
        (lambda b, g: b / (2 if g.collective == "all_reduce" else 1),
         lambda b, g: wire("all_gather", g.ranks, g.size), "That is one phase of the ring. How "
         "many phases does a ring have?"),
        (lambda b, g: b * (2 if g.collective in PHASES else 1), "That is as much as a whole "
         "all-reduce sends. Which part of an all-reduce is this?"),
        (lambda b, g: b * g.ranks, lambda b, g: b * (1 if g.collective == "broadcast" else g.ranks),
         "`size` is the whole buffer. Does one rank send all of it, or a part of it?"),
        (lambda b, g: b if g.collective != "broadcast" else g.size * (g.ranks > 1),
         lambda b, g: b / (g.ranks if g.collective == "broadcast" else 1), "For a broadcast, all "
         "ranks together are asked for: how many ranks get the buffer?"),
        (lambda b, g: b + g.size * (g.collective == "broadcast"), "The source has the buffer "
         "already: how many ranks lack it?"),
        (lambda b, g: b / g.ranks, "That is a step of one chunk. How many steps does it take?"),
        (lambda b, g: b or g.size, "A single rank has no other rank to send to."),
    ),
    last="Draw it for 2 ranks, then for 3: which rank sends which part, and how often?",
)  # fmt: skip


# place_on_roofline


def roofline(flops, nbytes, peak, bandwidth):
    """The most FLOP/s that the roofline allows (Williams et al. 2009), and the limit."""
    compute, move = flops / peak, nbytes / bandwidth
    limit = "arithmetic" if compute > move else "memory"
    rate = flops / max(compute, move)
    return rate, limit


RETURN_RATE = "return rate, limit"
LIMIT = "compute > move"
place_on_roofline = Exercise(
    right=roofline,
    names=("the rate", "the limit"),
    draw=among(flops=(1e6, 9e11), nbytes=(1e6, 1e9), peak=(1e12, 9e14), bandwidth=(1e11, 4e12)),
    close=1e-9,
    # FLOPs, bytes moved, peak in FLOP/s, bandwidth in bytes/s; the ridges are 153, 295 and 5
    cases=(
        ("a product of n = 4096 on an A100", (2 * 4096**3, 6 * 4096**2, 312e12, 2.039e12)),
        ("a vector addition on an A100", (1e9, 12e9, 312e12, 2.039e12)),
        ("a product of n = 512 on an A100", (2 * 512**3, 6 * 512**2, 312e12, 2.039e12)),
        ("the same product on an H100", (2 * 512**3, 6 * 512**2, 989.4e12, 3.35e12)),
        ("a slow processor with fast memory", (4e9, 1e9, 1e11, 2e10)),
        ("the same processor, more FLOPs per byte", (40e9, 1e9, 1e11, 2e10)),
        ("a copy: no FLOPs at all", (0.0, 2e9, 312e12, 2.039e12)),
    ),
    slips=(
        (Edit(RETURN_RATE, "return max(compute, move), limit"), "That is a time in seconds. How "
         "many FLOPs per second is it?"),
        (Edit(RETURN_RATE, "return flops / nbytes, limit"), "That is the arithmetic intensity. "
         "Which rate does the memory allow with it?"),
        (Edit(RETURN_RATE, "return min(peak, nbytes / flops * bandwidth if flops else peak), "
         "limit"),
         "Intensity is FLOPs per byte. Did you divide bytes by FLOPs?"),
        (Edit(RETURN_RATE, "return rate / peak, limit"), "That is a fraction of the peak. Return "
         "FLOP/s."),
        (Edit("max(compute, move)", "(compute + move)"), "You added two times. The processor "
         "computes and moves bytes at the same time."),
        (Edit(RETURN_RATE, "return peak, limit"), "That is the peak. Does the memory deliver the "
         "bytes fast enough for it?"),
        (Edit("max(compute, move)", "move"), "That is the rate that the memory allows. Can the "
         "processor compute so fast?"),
        (Edit("max(compute, move)", "min(compute, move) if flops else 0.0"), "There are two upper "
         "bounds. Both hold: which of them is the roofline?"),
        (Edit(LIMIT, "flops > nbytes"), "The boundary is not 1 FLOP per byte. At which intensity "
         "do the two limits meet?"),
        (Edit(LIMIT, "flops / nbytes > bandwidth / peak"), "Is the ridge peak / bandwidth, or "
         "bandwidth / peak?"),
        (Edit(LIMIT, "compute <= move"), "The two names are swapped: below the ridge, which part "
         "waits for which?"),
        (Edit('"arithmetic"', '"compute"'), "Return 'memory' or 'arithmetic' as the second value."),
    ),
    last="There are two upper bounds: one from the peak, one from the bandwidth. Print both.",
)  # fmt: skip


# count_attention

DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
# batch, heads, tokens, width of a head, bytes of a number; all different
SIZES = ((1, 1, 7, 5, 4), (1, 1, 7, 5, 2), (1, 3, 16, 4, 2), (5, 3, 7, 16, 8), (2, 4, 1, 8, 4))


@cache
def counted(batch, heads, tokens, width, size) -> tuple[int, int]:
    """FLOPs of the products, and bytes, of attention as PyTorch runs it: three operators."""
    q, k, v = (torch.ones(batch, heads, tokens, width, dtype=DTYPES[size]) for _ in range(3))

    def attend():
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v

    return flops_of(attend).total, moved_by(attend).total


def flops(change):
    """The mistake `change(flops, g)` in the first number."""
    return lambda b, g: (change(b[0], g), b[1])


def moves(vectors: int, scores: int):
    """So often the (T, D) tensors, and so often the (T, T) tensors, where 4 and 4 are right."""
    return lambda b, g: (b[0], (vectors * g.width + scores * g.tokens) * numbers(g) * g.size)


def numbers(g) -> int:
    return g.batch * g.heads * g.tokens


count_attention = Number(
    right=counted,
    names=("the FLOPs", "the bytes"),
    draw=among(batch=(2, 9), heads=(2, 9), tokens=(2, 9), width=(2, 9), size=[2, 4, 8]),
    cases=SIZES,
    slips=(
        (flops(lambda f, g: f / 2), flops(lambda f, g: f / 4), "Too few. Count both products, and "
         "count a multiply-add as 2 FLOPs."),
        (flops(lambda f, g: f / g.tokens), "Every token is compared with every token: how many "
         "scores does a head have?"),
        (flops(lambda f, g: f / g.heads), flops(lambda f, g: f / g.batch / g.heads), "How many "
         "heads compute, over the whole batch?"),
        (flops(lambda f, g: f / g.tokens * g.width), "The scores are (T, T), and each is a product "
         "of two vectors of width D. Which of the two did you swap?"),
        (flops(lambda f, g: f / g.tokens * (g.tokens + 1) / 2), "The mask saves nothing here: all "
         "(T, T) scores are computed."),
        (moves(3, 0), "Only q, k and v are read here. What do the operators write, and what do the "
         "later ones read again?"),
        (*(flops(lambda f, g, k=k: f + k * numbers(g) * g.tokens) for k in range(1, 8)),
         "Count the products alone: the softmax has few FLOPs beside them."),
        (moves(4, 0), "A fused kernel moves at least that. Here three operators run one after "
         "another: how do the scores get from one to the next?"),
        (moves(3, 4), moves(2, 4), "The scores are right. Which tensors of width D go in, and "
         "which comes out?"),
        (moves(4, 1), moves(4, 2), moves(4, 3), "The scores and the weights are (T, T) each. Which "
         "operator writes them, and which operator reads them again?"),
        (moves(0, 4), "The (T, T) tensors are right. What else is read, and what is written at the "
         "end?"),
        (lambda b, g: (b[0], b[1] / g.heads), lambda b, g: (b[0], b[1] / g.batch),
         lambda b, g: (b[0], b[1] / g.heads / g.batch), "How many heads read and write, over the "
         "whole batch?"),
    ),
    last="Write each product as (T, inner) × (inner, columns), for one head. Then list for each of "
    "the three operators: which tensors in, which tensor out?",
)  # fmt: skip


# name_culprit

LOST = "Connection closed by peer"
LATE = "timed out"


def report(calls: str, error: str | None = None, alive: bool = True) -> dict:
    """What one rank reports: the collectives that it called, its error, and whether it answers."""
    return {"alive": alive, "error": error, "calls": calls.split()}


STEP = "all_reduce all_reduce all_reduce"
LAST = f"all_reduce {LATE}"
REPORTS = (
    ("a killed process", (
        [report(STEP, LOST), report(STEP, LOST), report("", alive=False), report(STEP, LOST)],
    )),
    ("an exception on one rank", (
        [report(STEP, LOST), report(STEP, "ZeroDivisionError: division by zero")],
    )),
    ("an exception, and a slow rank", (
        [report(STEP, LOST), report("all_reduce", LOST), report(STEP, "KeyError: 'loss'")],
    )),
    ("a hang", (
        [report(STEP), report(STEP), report("all_reduce all_reduce"), report(STEP)],
    )),
    ("a hang that timed out", (
        [report("all_reduce"), report(STEP, LAST), report(STEP, LAST), report(STEP, LAST)],
    )),
    ("another collective than the others'", (
        [report("all_reduce barrier all_reduce"), report("all_reduce broadcast all_reduce"),
         report("all_reduce barrier all_reduce")],
    )),
    ("another collective, and a rank that made fewer calls", (
        [report(STEP), report("all_reduce barrier all_reduce"), report("all_reduce all_reduce"),
         report(STEP)],
    )),
    ("another collective, and a rank that timed out", (
        [report("barrier all_reduce", f"barrier {LATE}"),
         report("barrier all_reduce", f"barrier {LATE}"),
         report("barrier all_reduce", f"barrier {LATE}"), report("all_reduce all_reduce")],
    )),
    ("a killed process, after the others' errors", (
        [report(STEP, alive=False), report(STEP, "RuntimeError: lost rank 0"), report(STEP, LOST)],
    )),
)  # fmt: skip


def turned(random):
    """One of the cases, with other names of the ranks."""
    words, (reports,) = random.choice(REPORTS)
    order = random.sample(range(len(reports)), len(reports))
    return f"{words}, as ranks {order}", ([reports[rank] for rank in order],)


def culprit(reports):
    """A silent rank first, then an error that no other rank caused, then the calls."""
    calls = [one["calls"] for one in reports]
    silent = [rank for rank, one in enumerate(reports) if not one["alive"]]
    said = [one["error"] for one in reports]
    errors = [n for n, one in enumerate(said) if one and LOST not in one and LATE not in one]
    fewest = [rank for rank, made in enumerate(calls) if len(made) < max(map(len, calls))]
    fewest.sort(key=lambda rank: len(calls[rank]))
    others = [rank for rank, made in enumerate(calls) if calls.count(made) == 1]
    return [*silent, *errors, *fewest, *others][0]


def say_culprit(facet, found, right, reports) -> str:
    lines = (f"  rank {rank}: {report}" for rank, report in enumerate(reports))
    return "\n".join([f"you blame rank {short(found)}", *lines])


ORDER = "[*silent, *errors, *fewest, *others][0]"
IN_ORDER = (
    "In this order: a rank that no longer answers, an error of its own, the fewest calls, another "
    "call."
)
name_culprit = Exercise(
    right=culprit,
    cases=REPORTS,
    draw=turned,
    say=say_culprit,
    slips=(
        (Edit(ORDER, "[*errors, *silent, *fewest, *others][0]"),
         Edit(ORDER, "[*errors, *fewest, *others][0]"), "That rank could still report. Which rank "
         "says nothing at all?"),
        (Edit(" and LOST not in one", ""), "That rank only lost a connection. Which rank "
         "has an error of its own?"),
        (Edit(" and LATE not in one", ""), "A rank that timed out was waiting for "
         "another. For which rank did it wait?"),
        (Edit(" and LOST not in one and LATE not in one", ""), "That rank only "
         "lost a connection, or waited for another. Which rank has an error of its own?"),
        (Edit(ORDER, "[*silent, *fewest, *errors, *others][0]"), "One rank reports an error that "
         "no other rank caused. It comes before any count."),
        (Edit(ORDER, "[*silent, *errors, *others, *fewest][0]"), "Every rank waits for the rank "
         "that has not made the last call. Count the calls."),
        (Edit(ORDER, "[*silent, *errors, *fewest, *range(9)][0]"), "All ranks made equally many "
         "calls. Compare the lists place by place: which one differs?"),
        (Edit("< max(map(len, calls))", "> min(map(len, calls))", "len(calls[rank]))",
              "-len(calls[rank]))"), "The rank with the most calls waits for the others. Which has "
         "made the fewest?"),
        (Edit(ORDER, "0"), "Read the reports: who answers, who has an error of its own, who made "
         "fewer calls?"),
    ),
    about={"returned": IN_ORDER},  # a rank is no number that is too small
    last=IN_ORDER,
)  # fmt: skip
