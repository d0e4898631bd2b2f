"""Exercise of week 1, third part: FLOPs and bytes of attention, against PyTorch's own operators."""

from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.measure.flops import flops_of

DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
# batch, heads, tokens, width of a head, bytes of a number. All different, so that a factor that
# is missing or too many shows.
CASES = ((1, 1, 7, 5, 4), (1, 1, 7, 5, 2), (1, 3, 16, 4, 2), (5, 3, 7, 16, 8), (2, 4, 1, 8, 4))


def count_attention(fn) -> Verdict:
    """Check `fn(batch, heads, tokens, width, size) -> (FLOPs, bytes)` of explicit attention.

    Three operators: scores = q @ kᵀ, softmax, weights @ v. Each reads its inputs from memory and
    writes its output. PyTorch runs them, and its operators are counted; FLOPs are those of the
    matrix products.
    """
    cases = [
        (f"{b} × {h} heads, {t} tokens, width {d}, {s} bytes a number", (b, h, t, d, s), {})
        for b, h, t, d, s in (*CASES, *hidden.more(drawn))
    ]
    return examine_here("count_attention", fn, cases, judge_attention)


def drawn(random):
    return (*(random.randint(2, 9) for _ in range(4)), random.choice(list(DTYPES)))


class MovedBytes(TorchDispatchMode):
    """Count the bytes that operators read and write, if no cache helps. Views move nothing."""

    def __init__(self):
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in `Traffic`: nothing is compiled here, and the compiler's import takes a second."""
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
    """FLOPs and bytes of attention as PyTorch runs it."""
    q, k, v = (torch.ones(batch, heads, tokens, width, dtype=DTYPES[size]) for _ in range(3))

    def attend():
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v

    with MovedBytes() as moved:
        attend()
    return flops_of(attend).total, moved.total


def judge_attention(answer, *case):
    if not isinstance(answer, tuple | list) or len(answer) != 2 or not all(map(is_number, answer)):
        raise NotRight(f"returned {answer!r}", "Return two numbers: FLOPs, and bytes.")
    flops, nbytes = counted(*case)
    if tuple(answer) == (nbytes, flops) and flops != nbytes:
        raise NotRight(f"returned {answer!r}", "Return the FLOPs first, then the bytes.")
    if answer[0] != flops:
        raise NotRight(
            f"you said {answer[0]:,.12g} FLOPs; PyTorch's products have {flops:,}",
            hint_flops(answer[0], flops, *case),
        )
    if answer[1] != nbytes:
        raise NotRight(
            f"the FLOPs are right; you said {answer[1]:,.12g} bytes, and PyTorch's operators read "
            f"and write {nbytes:,}",
            hint_bytes(answer[1], nbytes, *case),
        )


def hint_flops(answer, right, batch, heads, tokens, width, size) -> str:
    """Which common mistake gives these FLOPs?"""
    if answer * 2 == right:
        return "Half. Count both products, and count a multiply-add as 2 FLOPs."
    if answer * 4 == right:
        return "A quarter. Count both products, and count a multiply-add as 2 FLOPs."
    if answer * tokens == right:
        return "Every token is compared with every token: how many scores does a head have?"
    if answer * heads == right or answer * batch * heads == right:
        return "How many heads compute, over the whole batch?"
    if answer * batch == right:
        return "That is one sequence. How many are in the batch?"
    if answer == right * heads:
        return "`width` is the width of one head already."
    return "Write each product as (T, inner) × (inner, columns), for one head. Then multiply."


def hint_bytes(answer, right, batch, heads, tokens, width, size) -> str:
    """Which common mistake gives these bytes?"""
    every = size * batch * heads
    vectors, scores = every * tokens * width, every * tokens * tokens  # bytes of q; of the scores
    if answer * size == right:
        return "Those are numbers. How many bytes is a number?"
    if answer == 4 * vectors:
        return (
            "That is what a fused kernel moves. Here three operators run one after another: how "
            "do the scores get from one to the next?"
        )
    if answer in (3 * vectors + 4 * scores, 2 * vectors + 4 * scores):
        return "The scores are right. Which tensors of width D go in, and which comes out?"
    if answer in (4 * vectors + k * scores for k in (1, 2, 3)):
        return (
            "The scores and the weights are (T, T) each. Which operator writes them, and which "
            "operator reads them again?"
        )
    if answer == 4 * scores:
        return "The (T, T) tensors are right. What else is read, and what is written at the end?"
    if answer * heads == right or answer * batch * heads == right:
        return "How many heads read and write, over the whole batch?"
    return "Make a list for each of the three operators: which tensors in, which tensor out?"
