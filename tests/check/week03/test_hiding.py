"""The tokens that hide an all-reduce: the solution passes, each mistake gets its own hint."""

import pytest

from helpers import check
from helpers.simulate.collective_time import largest_bus_bandwidth
from helpers.simulate.data_parallel import step
from helpers.simulate.topology import DGX_H100
from notebooks.solutions import week03
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
