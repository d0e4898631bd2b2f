"""FLOPs and bytes of attention: the solution passes, each mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week01 import attention
from notebooks.solutions import week01
from tests.check.alone import found_alone
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


def test_a_mistake_in_one_case_alone_is_found():
    def one_more(place):
        def solve(*case):
            answer = list(right(*case))
            answer[place] += 1
            return answer

        return found_alone(check.count_attention, right, solve)

    says = "the FLOPs are right; you said {:,} bytes, and PyTorch's operators read and write {:,}"
    assert one_more(1) == [
        f"{case}: {says.format(nbytes + 1, nbytes)}"
        for case, nbytes in {
            "1 × 1 heads, 7 tokens, width 5, 4 bytes a number": 4 * (4 * 35 + 4 * 49),
            "1 × 1 heads, 7 tokens, width 5, 2 bytes a number": 2 * (4 * 35 + 4 * 49),
            "1 × 3 heads, 16 tokens, width 4, 2 bytes a number": 2 * 3 * (4 * 64 + 4 * 256),
            "5 × 3 heads, 7 tokens, width 16, 8 bytes a number": 8 * 15 * (4 * 112 + 4 * 49),
            "2 × 4 heads, 1 tokens, width 8, 4 bytes a number": 4 * 8 * (4 * 8 + 4),
        }.items()
    ]
    found = one_more(0)
    assert [one.split(": ")[1] for one in found] == [
        f"you said {flops + 1:,} FLOPs; PyTorch's products have {flops:,}"
        for flops in (4 * 49 * 5, 4 * 49 * 5, 3 * 4 * 256 * 4, 15 * 4 * 49 * 16, 8 * 4 * 8)
    ]


def test_the_order_of_the_two_numbers():
    for swapped in ((1152, 256), [1152, 256]):
        with pytest.raises(NotRight, match="returned ") as wrong:
            attention.judge_attention(swapped, 2, 4, 1, 8, 4)
        assert "the FLOPs first" in wrong.value.hint
    attention.judge_attention([256, 1152], 2, 4, 1, 8, 4)
    attention.judge_attention((2048, 2048), 1, 1, 8, 8, 4)  # both numbers are equal here


def test_grading_draws_cases_of_all_sizes():
    drawn = [attention.drawn(random.Random(secret)) for secret in range(80)]
    for place in range(4):
        assert {case[place] for case in drawn} == {2, 3, 4, 5, 6, 7, 8, 9}
    assert {case[4] for case in drawn} == {2, 4, 8}


CASE = (5, 3, 7, 16, 8)  # batch, heads, tokens, width, bytes of a number
FLOPS, VECTORS, SCORES = 15 * 4 * 49 * 16, 8 * 15 * 7 * 16, 8 * 15 * 49


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (FLOPS / 2, "Half."),
        (FLOPS / 4, "A quarter."),
        (FLOPS / 7, "how many scores"),
        (FLOPS / 3, "How many heads compute"),
        (FLOPS / 15, "How many heads compute"),
        (FLOPS / 5, "one sequence"),
        (FLOPS * 3, "width of one head"),
        (FLOPS * 5, "for one head. Then multiply"),
    ],
)
def test_the_hint_for_wrong_flops(answer, hint):
    assert hint in attention.hint_flops(answer, FLOPS, *CASE)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        ((4 * VECTORS + 4 * SCORES) / 8, "Those are numbers"),
        (4 * VECTORS, "a fused kernel"),
        (2 * VECTORS + 4 * SCORES, "Which tensors of width D"),
        (3 * VECTORS + 4 * SCORES, "Which tensors of width D"),
        (4 * VECTORS + SCORES, "reads them again"),
        (4 * VECTORS + 3 * SCORES, "reads them again"),
        (4 * SCORES, "what is written at the end"),
        ((4 * VECTORS + 4 * SCORES) / 3, "How many heads read"),
        ((4 * VECTORS + 4 * SCORES) / 15, "How many heads read"),
        (4 * VECTORS + 5 * SCORES, "Make a list"),
    ],
)
def test_the_hint_for_wrong_bytes(answer, hint):
    assert hint in attention.hint_bytes(answer, 4 * VECTORS + 4 * SCORES, *CASE)
