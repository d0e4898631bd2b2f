"""Exercises of week 1: the roofline, attention's FLOPs and bytes, who failed first."""

from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.check.answers import is_number, short
from helpers.check.exercise import Edit, Exercise
from helpers.measure.flops import flops_of

FORM = "what is returned"


def pair(solve, *arguments, names: tuple[str, str]) -> dict:
    """The trace of a function that returns two values."""
    answer = solve(*arguments)
    two = isinstance(answer, tuple | list) and len(answer) == 2
    first, second = answer if two else (None, None)
    form = f"two values, {names[0]} first" if two else short(answer)
    if two and not is_number(first):
        form, first = f"{short(first)} as {names[0]}", None
    return {FORM: form, names[0]: first, names[1]: second}


# place_on_roofline


def roofline(flops, nbytes, peak, bandwidth):
    """The most FLOP/s that the roofline allows (Williams et al. 2009), and the limit."""
    compute, move = flops / peak, nbytes / bandwidth
    limit = "arithmetic" if compute > move else "memory"
    rate = flops / max(compute, move)
    return rate, limit


def drawn_processor(random):
    peak, bandwidth = random.uniform(1e12, 9e14), random.uniform(1e11, 4e12)
    nbytes = random.uniform(1e6, 1e9)
    return "another processor", (nbytes * random.uniform(1, 900), nbytes, peak, bandwidth)


def play_roofline(solve, *arguments) -> dict:
    return pair(solve, *arguments, names=("the rate", "the limit"))


RETURN_RATE = "return rate, limit"
LIMIT = "compute > move"
place_on_roofline = Exercise(
    name="place_on_roofline",
    right=roofline,
    play=play_roofline,
    draw=drawn_processor,
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
        (Edit(RETURN_RATE, "return rate"), "Return two values: the rate, and the limit."),
        (Edit(RETURN_RATE, "return limit, rate"), "Return the rate first, as a number of FLOP/s."),
    ),
    last="There are two upper bounds: one from the peak, one from the bandwidth. Print both.",
)  # fmt: skip


# count_attention

DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
# batch, heads, tokens, width of a head, bytes of a number; all different
SIZES = ((1, 1, 7, 5, 4), (1, 1, 7, 5, 2), (1, 3, 16, 4, 2), (5, 3, 7, 16, 8), (2, 4, 1, 8, 4))


class MovedBytes(TorchDispatchMode):
    """Count the bytes that operators read and write, if no cache helps. Views move nothing."""

    def __init__(self):
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in `Watch`: nothing is compiled here, and the compiler's import takes a second."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in args if isinstance(t, torch.Tensor)]
        if all(memory(t) != memory(out) for t in tensors):
            self.total += sum(t.nbytes for t in [*tensors, out])
        return out


def memory(tensor: torch.Tensor) -> int:
    """Where a tensor's numbers begin: a view shares them with another tensor."""
    return tensor.untyped_storage().data_ptr()


@cache
def counted(batch, heads, tokens, width, size) -> tuple[int, int]:
    """FLOPs of the products, and bytes, of attention as PyTorch runs it: three operators."""
    q, k, v = (torch.ones(batch, heads, tokens, width, dtype=DTYPES[size]) for _ in range(3))

    def attend():
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v

    with MovedBytes() as moved:
        attend()
    return flops_of(attend).total, moved.total


def in_words(batch, heads, tokens, width, size):
    words = f"{batch} × {heads} heads, {tokens} tokens, width {width}, {size} bytes a number"
    return words, (batch, heads, tokens, width, size)


def drawn_attention(random):
    return in_words(*(random.randint(2, 9) for _ in range(4)), random.choice(list(DTYPES)))


def play_attention(solve, *arguments) -> dict:
    return pair(solve, *arguments, names=("the FLOPs", "the bytes"))


def with_flops(change):
    def solve(*given):
        flops, nbytes = counted(*given)
        return change(flops, *given), nbytes

    return solve


def with_bytes(vectors: float, scores: float, change=lambda n, b, h, t, d, s: n):
    """So often the (T, D) tensors, and so often the (T, T) tensors, where 4 and 4 are right."""

    def solve(batch, heads, tokens, width, size):
        flops, _ = counted(batch, heads, tokens, width, size)
        numbers = vectors * tokens * width + scores * tokens * tokens
        given = (batch, heads, tokens, width, size)
        return flops, change(numbers * batch * heads * size, *given)

    return solve


HALF = "Half. Count both products, and count a multiply-add as 2 FLOPs."
QUARTER = "A quarter. Count both products, and count a multiply-add as 2 FLOPs."
HOW_MANY = "How many heads compute, over the whole batch?"
THREE = "The scores are right. Which tensors of width D go in, and which comes out?"
BETWEEN = (
    "The scores and the weights are (T, T) each. Which operator writes them, and which operator "
    "reads them again?"
)
MANY = "How many heads read and write, over the whole batch?"
count_attention = Exercise(
    name="count_attention",
    right=counted,
    play=play_attention,
    draw=drawn_attention,
    cases=tuple(in_words(*sizes) for sizes in SIZES),
    slips=(
        (lambda *given: counted(*given)[::-1], "Return the FLOPs first, then the bytes."),
        (with_flops(lambda f, *given: f / 2), HALF),
        (with_flops(lambda f, *given: f / 4), QUARTER),
        (with_flops(lambda f, b, h, t, d, s: f / t), "Every token is compared with every token: "
         "how many scores does a head have?"),
        (with_flops(lambda f, b, h, t, d, s: f / h), HOW_MANY),
        (with_flops(lambda f, b, h, t, d, s: f / b / h), HOW_MANY),
        (with_flops(lambda f, b, h, t, d, s: f / b), "That is one sequence. How many are in the "
         "batch?"),
        (with_flops(lambda f, b, h, t, d, s: f * h), "`width` is the width of one head already."),
        (with_flops(lambda f, b, h, t, d, s: f / h * (1 + 1 / h) * h), HOW_MANY),
        (with_flops(lambda f, b, h, t, d, s: f + 5 * b * h * t * t), "Count the products alone: "
         "the softmax has few FLOPs beside them."),
        (with_bytes(4, 4, lambda n, b, h, t, d, s: n / s), "Those are numbers. How many bytes is a "
         "number?"),
        (with_bytes(4, 0), "That is what a fused kernel moves. Here three operators run one after "
         "another: how do the scores get from one to the next?"),
        (with_bytes(3, 4), THREE),
        (with_bytes(2, 4), THREE),
        (with_bytes(4, 1), BETWEEN),
        (with_bytes(4, 2), BETWEEN),
        (with_bytes(4, 3), BETWEEN),
        (with_bytes(0, 4), "The (T, T) tensors are right. What else is read, and what is written "
         "at the end?"),
        (with_bytes(4, 4, lambda n, b, h, t, d, s: n / h), MANY),
        (with_bytes(4, 4, lambda n, b, h, t, d, s: n / b), MANY),
        (with_bytes(4, 4, lambda n, b, h, t, d, s: n / h / b), MANY),
        (with_bytes(4, 4, lambda n, b, h, t, d, s: n / s * 4), "How many bytes is a number? It is "
         "an argument."),
        (lambda *given: counted(*given)[0], "Return two numbers: FLOPs, and bytes."),
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
    if not is_number(found) or found not in range(len(reports)):
        return f"returned {short(found)}, no rank from 0 to {len(reports) - 1}"
    lines = (
        f"  rank {rank}: {'answers' if one['alive'] else 'does not answer'}, calls {one['calls']}"
        + (f", error {one['error']!r}" if one["error"] else "")
        for rank, one in enumerate(reports)
    )
    return "\n".join([f"you blame rank {found}", *lines])


ORDER = "[*silent, *errors, *fewest, *others][0]"
REPORTED = "That rank could still report. Which rank says nothing at all?"
name_culprit = Exercise(
    name="name_culprit",
    right=culprit,
    cases=REPORTS,
    draw=turned,
    say=say_culprit,
    slips=(
        (Edit(ORDER, "[*errors, *silent, *fewest, *others][0]"), REPORTED),
        (Edit(ORDER, "[*errors, *fewest, *others][0]"), REPORTED),
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
    last="In this order: a rank that no longer answers, an error of its own, the fewest calls, "
    "another call.",
)  # fmt: skip
