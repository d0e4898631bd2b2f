"""Exercise of week 4: the bytes that a rank sends for one block, beside counted messages."""

import math

from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.check.week04.measured import NOT_USED, Case, asked, measure
from helpers.models.config import GPTConfig

SMALL = {"vocab": 8, "context": 16, "width": 32, "layers": 3, "heads": 4, "hidden": 104}
BATCH = {"sequences": 3, "tokens": 16}


def case(way: str, ranks: int, number: int = 4, recompute: str = "none", **changes) -> Case:
    config = GPTConfig(**{**SMALL, **changes}, recompute=recompute)
    return Case(config=config, ranks=ranks, way=way, bytes_per_number=number, **BATCH)


CASES = (
    case("tensor", 4),
    case("tensor", 2),
    case("tensor", 4, number=8, width=24, mlp="gelu"),
    case("tensor", 2, recompute="selective"),
    case("tensor", 4, recompute="full"),
    case("sequence, kept", 4),
    case("sequence, again", 4),
    case("sequence, again", 2, number=8, recompute="full"),
    case("tensor", 1),
)


def message_bytes(fn) -> Verdict:
    """Check `fn(config, sequences, tokens, ranks, way, bytes_per_number) -> bytes of a block`.

    The reference is a real forward and backward of a block. Its calls are counted, and each counts
    with the bytes that a ring sends for it.
    """
    cases = [(one.title(), one.arguments(), {"case": one, "fn": fn}) for one in asked(CASES)]
    return examine_here("message_bytes", fn, cases, judge_bytes)


def judge_bytes(answer, *arguments, case: Case, fn):
    if not is_number(answer):
        raise NotRight(f"returned {answer!r}", "Return one number of bytes.")
    right = measure(asked(CASES))[case].sent
    if not math.isclose(answer, right, rel_tol=1e-9):
        raise NotRight(
            f"{case.sequences} x {case.tokens} tokens of width {case.config.width}, "
            f"{case.bytes_per_number} bytes a number\n"
            f"  you returned {answer:,.10g} bytes; a rank sent {right:,.10g} in a forward and a "
            "backward of one block",
            hint_bytes(answer, right, case, fn),
        )


def hint_bytes(answer: float, right: float, case: Case, fn) -> str:
    """The hint for the common mistake that gives this answer."""
    n = case.ranks
    if n == 1:
        return "One rank has nobody to send to. Which factor of a ring is zero for one rank?"
    if case.ignores_number(fn):
        return NOT_USED[math.isclose(answer * case.bytes_per_number, right, rel_tol=1e-9)]
    for value, hint in candidates(right, case):
        if math.isclose(answer, value, rel_tol=1e-9):
            return hint
    return (
        "List the messages: in the forward, then in the backward, for attention, then for the MLP. "
        "Beside each write its numbers, and how often a ring sends each number."
    )


def candidates(right: float, case: Case) -> list[tuple[float, str]]:
    """Wrong answers, each with its hint. A unit is a ring's pass around a B T D tensor."""
    config, n = case.config, case.ranks
    tensor = case.sequences * case.tokens * config.width * case.bytes_per_number
    unit = (n - 1) / n * tensor
    units = right / unit  # 8 for tensor parallelism
    ring = (
        "These are the bytes of the buffers. How often does a ring send each byte of an "
        "all-reduce, and of an all-gather? It depends on N."
    )
    cut_twice = (
        "A reduce-scatter or an all-gather sends half of an all-reduce. How many of them are there "
        "for each all-reduce that they replace?"
    )
    recomputed = {
        "full": [
            (right - 4 * unit, "Full recomputation runs the forward again. Which messages does "
             "that send again?"),
        ],
        "selective": [
            (right + 4 * unit, "Selective recomputation runs the core of attention again: scores, "
             "softmax, and the sums of values. Which of its products leaves the rank?"),
        ],
        "none": [],
    }[config.recompute]  # fmt: skip
    again = {
        "sequence, again": [
            (right - 2 * unit, "The backward gathers inputs a second time. How many layers' inputs "
             "does a block gather, and how many bytes is that?"),
            (right + 2 * unit, "Too many gathers in the backward. Which layers gather their input: "
             "the column-parallel ones, the row-parallel ones, or both?"),
        ],
        "sequence, kept": [
            (right + 2 * unit, "That gathers the inputs twice. In this way the gathered inputs are "
             "kept for the backward."),
        ],
    }.get(case.way, [])  # fmt: skip
    sharded = [
        (right / 2, cut_twice),
        (right * 2, cut_twice),
        (right / n, "Divided by N. How large is the tensor that the ranks gather or reduce: T "
         "tokens, or T/N tokens?"),
    ]  # fmt: skip
    half = (
        "Half of the bytes. Count the all-reduces of the forward and of the backward, and how "
        "often a ring sends each byte of an all-reduce."
    )
    return [
        *recomputed,
        *again,
        *(sharded if case.way != "tensor" else []),
        (units / 2 * tensor, ring),
        (units * tensor, ring),
        (right / 2, half),
        (right / 4, "A quarter of the bytes. Attention and MLP each end in a sum, in the forward. "
         "And what does the backward of each send?"),
        (right * 2, "Twice the bytes. A backward of g sends nothing, and a forward of f sends "
         "nothing: which all-reduces are left?"),
        (right * n, "Count the bytes of one rank, not those of all ranks."),
        (right * config.layers, "Count one block, not all layers."),
        (right * config.inner / config.width, "Which width does the message have? The sum is taken "
         "after the row-parallel layer."),
    ]  # fmt: skip
