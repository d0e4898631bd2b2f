"""The tokens that hide an all-reduce: the solution passes, each mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week03 import hiding
from helpers.simulate.collective_time import largest_bus_bandwidth
from helpers.simulate.data_parallel import step
from helpers.simulate.topology import DGX_H100
from notebooks.solutions import week03
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew


def stub(flops_per_second, bus_bandwidth, ranks, gradient_bytes, micro_batches):
    raise NotImplementedError


def right(*args):
    return week03.tokens_to_hide(*args)


MISTAKES = [
    (lambda f, w, n, b, k: b / 2 * f / w, "How many bytes of each gradient does a ring send"),
    (lambda f, w, n, b, k: b / 4 * f / w, "Where is n?"),
    (lambda f, w, n, b, k: right(f, w, n, b, 1), "Which backward can still hide"),
    (lambda f, w, n, b, k: right(f, w, n, b, 1) / k, "tokens, or fewer"),
    (lambda f, w, n, b, k: right(f, w, n, 2, k), "have in the message"),
    (lambda f, w, n, b, k: right(f, w, n, 1, k), "have in the message"),
    (lambda f, w, n, b, k: right(f, w / 8, n, b, k), "not bits"),
    (lambda f, w, n, b, k: right(f, w, n, b, k) * 2, "the forward's time"),
    (lambda f, w, n, b, k: right(f, w, n, b, k) * 2 / 3, "counts the forward, too"),
    (lambda f, w, n, b, k: right(w, f, n, b, k), "Upside down"),
    (lambda f, w, n, b, k: f / w * 1.01 if n > 1 else 0, "N cancels"),
    (lambda f, w, n, b, k: max(1.0, right(f, w, n, b, k)), "One GPU sends no message"),
    (lambda f, w, n, b, k: right(f, w, n, b, k) * (1 + 1e-5), "N cancels"),
    (lambda f, w, n, b, k: None, "Return one number"),
    (lambda f, w, n, b, k: right(f, w, n, b, k) / 2, "sends each byte twice"),
    (lambda f, w, n, b, k: right(f, w, n, b, k) * n, "those of all GPUs"),
]


def test_the_solution_passes():
    verdict = check.tokens_to_hide(week03.tokens_to_hide)
    assert verdict, verdict


def test_the_stub_is_told_apart():
    assert check.tokens_to_hide(stub).status == "not written yet"


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.tokens_to_hide(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_the_solution_agrees_with_the_simulator(micro_batches):
    """Bandwidth as large as the simulator's for large messages; the bucket is small beside N."""
    cluster, flops, parameters = DGX_H100.of(64), 4e14, 1e12
    bandwidth = largest_bus_bandwidth("all_reduce", cluster, "tree")
    edge = right(flops, bandwidth, 64, 2, micro_batches) / micro_batches  # of the last micro-batch
    model = {"parameters": parameters, "flops_per_second": flops, "topology": cluster}
    for tokens, hides in ((0.9 * edge, False), (1.2 * edge, True)):
        found = step(tokens=tokens, algorithm="tree", bucket_bytes=4e9, **model)
        assert (found.communication < found.backward) == hides


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.tokens_to_hide, week03.tokens_to_hide))


def test_a_mistake_in_one_case_alone_is_found():
    """The tokens by hand: 2 (n-1)/n b / w seconds against 4 / f seconds for each parameter."""

    def off(by):
        return lambda *given: right(*given) * (1 + by) + 1e-8 * (by > 1e-6)

    found = found_alone(check.tokens_to_hide, off(2e-7), off(2e-6))
    wanted = {
        "5 GPUs, bf16 messages": 4 / 5 * 1000,
        "1,024 GPUs, bf16 messages": 1023 / 1024 * 1000,
        "a slow network": 63 / 64 * 8000,
        "fp32 messages": 7 / 8 * 1000,
        "4 micro-batches in each step": 4 * 15 / 16 * 1000,
        "fp32 messages, 3 micro-batches": 3 * 7 / 8 * 1000,
        "one GPU alone": 0,
    }
    assert [one.partition(": ")[0] for one in found] == list(wanted)
    for finding, tokens in zip(found, wanted.values(), strict=True):
        assert finding.endswith(f"both times are equal at {tokens:,.6g}")
    assert (
        found[0]
        .splitlines()[0]
        .endswith("4e+14 FLOP/s, 4e+11 bytes/s, 5 ranks, 2 bytes per gradient, 1 micro-batch")
    )
    assert "4 bytes per gradient, 3 micro-batches\n" in found[5]


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (4 / 3, "does a ring send"),
        (2 / 3, "Where is n?"),
        (1 / 5, "Inside no_sync() nothing is sent"),
        (1 / 25, "more tokens, or fewer"),
        (2 / 7, "have in the message"),
        (1 / 2, "sends each byte twice"),
        (2, "That is the forward's time"),
        (2 / 3 * (1 + 3e-6), "N cancels"),
        (8, "not bits"),
        (4, "not those of all GPUs"),
        (0.3**2, "Upside down"),
        (1.5, "N cancels"),
    ],
)
def test_the_hint_for_4_ranks_7_bytes_and_5_micro_batches(answer, hint):
    assert hint in hiding.hint_tokens(1000 * answer, 1000, 10.0, 3.0, 4, 7, 5)
    assert "N cancels" in hiding.hint_tokens(1001 * answer, 1000, 10.0, 3.0, 4, 7, 5)


def test_the_forward_too_and_one_rank():
    assert "counts the forward, too" in hiding.hint_tokens(2000 / 3, 1000, 10.0, 3.0, 5, 7, 3)
    assert "One GPU sends no message" in hiding.hint_tokens(1000, 0, 10.0, 3.0, 1, 7, 3)


def test_the_kind_of_answer():
    for answer in ("1", True, None, [1.0]):
        with pytest.raises(NotRight, match="returned ") as wrong:
            hiding.judge_tokens(answer, 4e14, 4e11, 4, 2, 1)
        assert wrong.value.hint == "Return one number of tokens, not rounded."
    hiding.judge_tokens(750, 4e14, 4e11, 4, 2, 1)
    hiding.judge_tokens(0, 4e14, 4e11, 1, 2, 1)
    with pytest.raises(NotRight):
        hiding.judge_tokens(1e-6, 4e14, 4e11, 1, 2, 1)


def test_grading_draws_clusters_of_all_sizes():
    drawn = [hiding.drawn(random.Random(secret))[1] for secret in range(60)]
    assert {size for *_, size, _ in drawn} == {2, 4}
    assert {micros for *_, micros in drawn} == set(range(1, 9))
    ranks = {ranks for _, _, ranks, _, _ in drawn}
    assert 2 <= min(ranks) < 100 < 700 < max(ranks) <= 900
    assert all(1e13 < flops < 9e14 and 1e10 < wire < 9e11 for flops, wire, *_ in drawn)
    assert len({flops for flops, *_ in drawn}) == len({wire for _, wire, *_ in drawn}) == 60
