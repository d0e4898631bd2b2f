"""Exercise of week 3: the tokens per GPU with which the all-reduce hides behind the backward."""

import math

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.simulate.data_parallel import hiding_tokens

# Words, then FLOP/s, bytes/s of bus bandwidth, ranks, bytes per gradient, micro-batches.
CASES = (
    ("5 GPUs, bf16 messages", (4e14, 4e11, 5, 2, 1)),
    ("1,024 GPUs, bf16 messages", (4e14, 4e11, 1024, 2, 1)),
    ("a slow network", (4e14, 5e10, 64, 2, 1)),
    ("fp32 messages", (1e14, 2e11, 8, 4, 1)),
    ("4 micro-batches in each step", (4e14, 4e11, 16, 2, 4)),
    ("fp32 messages, 3 micro-batches", (1e14, 2e11, 8, 4, 3)),
    ("one GPU alone", (4e14, 4e11, 1, 2, 1)),
)
FORWARD_TOO = (
    "That counts the forward, too. No gradient is ready during the forward. How many FLOPs per "
    "parameter and token does the backward take?"
)
HALF = (
    "Half of the bytes. An all-reduce sends each byte twice: a reduce-scatter, then an "
    "all-gather. And how many bytes does each gradient have in the message?"
)


def tokens_to_hide(fn) -> Verdict:
    """Check `fn(flops_per_second, bus_bandwidth, ranks, gradient_bytes, micro_batches)`."""
    cases = [(where, arguments, {}) for where, arguments in (*CASES, *hidden.more(drawn))]
    return examine_here("tokens_to_hide", fn, cases, judge_tokens)


def drawn(random):
    speeds = (random.uniform(1e13, 9e14), random.uniform(1e10, 9e11))
    sizes = (random.randint(2, 900), random.choice((2, 4)), random.randint(1, 8))
    return "another cluster", (*speeds, *sizes)


def fewest_tokens(flops_per_second, bus_bandwidth, ranks, gradient_bytes, micro_batches) -> float:
    """Only the last micro-batch's backward hides messages, so the others add tokens for nothing."""
    edge = hiding_tokens(
        flops_per_second=flops_per_second,
        bus_bandwidth=bus_bandwidth,
        ranks=ranks,
        gradient_bytes=gradient_bytes,
    )
    return micro_batches * edge


def judge_tokens(answer, flops_per_second, bus_bandwidth, ranks, gradient_bytes, micro_batches):
    given = (flops_per_second, bus_bandwidth, ranks, gradient_bytes, micro_batches)
    if not is_number(answer):
        raise NotRight(f"returned {answer!r}", "Return one number of tokens, not rounded.")
    right = fewest_tokens(*given)
    if not math.isclose(answer, right, rel_tol=1e-6, abs_tol=1e-9):
        raise NotRight(
            f"{flops_per_second:,.4g} FLOP/s, {bus_bandwidth:,.4g} bytes/s, {ranks} ranks, "
            f"{gradient_bytes} bytes per gradient, {micro_batches} micro-batch"
            f"{'es' * (micro_batches > 1)}\n"
            f"  you said {answer:,.6g} tokens; both times are equal at {right:,.6g}",
            hint_tokens(answer, right, *given),
        )


def hint_tokens(answer, right, flops, bandwidth, ranks, gradient_bytes, micro_batches) -> str:
    """Which common mistake gives this answer?"""
    k, around = micro_batches, (ranks - 1) / ranks
    if ranks == 1:
        return "One GPU sends no message. Which factor of the all-reduce is zero for one rank?"
    known = [
        (right / around, "How many bytes of each gradient does a ring send? It depends on n."),
        (right / around / 2, "An all-reduce is a reduce-scatter and an all-gather. Where is n?"),
        (right / k, "Inside no_sync() nothing is sent. Which backward can still hide messages?"),
        (right / k**2, "More micro-batches: does each one compute more tokens, or fewer?"),
        (right * 2 / gradient_bytes, "How many bytes does each gradient have in the message?"),
        (right / 2, HALF),
        (right * 2, "That is the forward's time. Which part of the step hides the messages?"),
        (right * 2 / 3, FORWARD_TOO),
        (right * 8, "bus_bandwidth counts bytes per second, not bits."),
        (right * ranks, "Count the tokens of one GPU, not those of all GPUs."),
        (right * bandwidth**2 / flops**2, "Upside down: does a faster GPU need fewer tokens?"),
    ]
    for value, hint in known:
        if math.isclose(answer, value, rel_tol=1e-6):
            return hint
    return (
        "Write down two times for N parameters: the backward of the last micro-batch, and the "
        "all-reduce. Set them equal. N cancels."
    )
