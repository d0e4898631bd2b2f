"""FLOPs and bytes of attention: the solution passes, each mistake gets its own hint."""

import pytest

from helpers import check
from helpers.check.week01 import attention
from notebooks.solutions import week01
from tests.check.asked import asked, drawn_anew


def stub(batch, heads, tokens, width, size):
    raise NotImplementedError


def right(*case):
    return week01.count_attention(*case)


def flops_of(wrong):
    return lambda *case: (wrong(*case), right(*case)[1])


def bytes_of(vectors, scores):
    """The right FLOPs; so many (T, D) tensors and so many (T, T) tensors."""
    return lambda b, h, t, d, s: (
        right(b, h, t, d, s)[0],
        s * b * h * (vectors * t * d + scores * t * t),
    )


MISTAKES = [
    (lambda *case: right(*case)[0], "Return two numbers"),
    (lambda *case: (None, right(*case)[1]), "Return two numbers"),
    (lambda *case: right(*case)[::-1], "the FLOPs first"),
    (flops_of(lambda b, h, t, d, s: 2 * b * h * t * t * d), "Count both products"),
    (flops_of(lambda b, h, t, d, s: b * h * t * t * d), "A quarter"),
    (flops_of(lambda b, h, t, d, s: 4 * b * h * t * d), "compared with every token"),
    (flops_of(lambda b, h, t, d, s: 4 * b * t * t * d), "How many heads compute"),
    (flops_of(lambda b, h, t, d, s: 4 * h * t * t * d), "one sequence"),
    (flops_of(lambda b, h, t, d, s: 4 * b * h * h * t * t * d), "width of one head"),
    (flops_of(lambda b, h, t, d, s: 4 * b * h * t * t * d + t), "for one head"),
    (bytes_of(4, 0), "a fused kernel"),
    (bytes_of(4, 1), "(T, T) each"),
    (bytes_of(4, 2), "(T, T) each"),
    (bytes_of(4, 3), "(T, T) each"),
    (bytes_of(3, 4), "which comes out"),
    (bytes_of(0, 4), "what is written at the end"),
    (bytes_of(5, 4), "each of the three operators"),
    (lambda b, h, t, d, s: (right(b, h, t, d, s)[0], right(b, h, t, d, 1)[1]), "bytes is a number"),
    (lambda b, h, t, d, s: (right(b, h, t, d, s)[0], right(b, 1, t, d, s)[1]), "read and write"),
]


def test_the_solution_passes():
    verdict = check.count_attention(week01.count_attention)
    assert verdict, verdict


def test_the_stub_is_told_apart():
    assert check.count_attention(stub).status == "not written yet"


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.count_attention(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_the_counter_counts_what_is_read_and_written_and_no_views():
    import torch

    x = torch.ones(3, 5)
    with attention.MovedBytes() as moved:
        x.T.reshape(15)[None]  # one copy: 60 bytes in, 60 bytes out
    assert moved.total == 120
    with attention.MovedBytes() as moved:
        torch.mm(x, x.T)
    assert moved.total == 4 * (15 + 15 + 9)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.count_attention, week01.count_attention))
