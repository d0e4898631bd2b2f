"""The fit on times made up with a known alpha and beta, and a small measurement.

No time that is measured here decides anything, beyond being above 0.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch.distributed as dist

from helpers.comm.cost import Fit, Sample, fit, measure, torch_call
from helpers.comm.ledger import ledger
from helpers.comm.volume import path
from helpers.runtime.launch import launch

ALPHA, BETA = 30e-6, 0.8e-9
SIZES = [4**k for k in range(5, 13)]


def made_up(calls=("all_reduce",), worlds=(2, 3), sizes=SIZES, noise=0.0, outliers=0.0, seed=0):
    """Samples of Hockney's model, each off by up to `noise`, some of them 5 times too slow."""
    draw = random.Random(seed)
    samples = []
    for call in calls:
        for ranks in worlds:
            for size in sizes:
                messages, on_the_way = path(call, size, ranks)
                seconds = messages * ALPHA + on_the_way * BETA
                seconds *= 1 + draw.uniform(-noise, noise)
                seconds *= 5 if draw.random() < outliers else 1
                samples.append(Sample(call=call, ranks=ranks, payload=size, seconds=seconds))
    return samples


def test_exact_times_give_alpha_and_beta_exactly():
    found = fit(made_up(calls=("all_reduce", "all_gather", "send")))
    assert found.alpha == pytest.approx(ALPHA, rel=1e-9)
    assert found.beta == pytest.approx(BETA, rel=1e-9)
    assert max(map(abs, found.errors())) < 1e-9


@pytest.mark.parametrize("seed", [0, 3])
def test_noise_and_outliers(seed):
    """Times 5 % off, about one in five 5 times too slow: alpha and beta within 5 %.

    Least squares that are not robust are up to 10 % off on the same samples.
    """
    found = fit(made_up(worlds=(2, 3, 4), noise=0.05, outliers=0.2, seed=seed))
    assert found.alpha == pytest.approx(ALPHA, rel=0.05)
    assert found.beta == pytest.approx(BETA, rel=0.05)


def test_the_fit_is_where_huber_s_loss_is_least():
    """There the errors, cut off at 1.345 deviations, balance each other in both unknowns."""
    samples = made_up(worlds=(2, 3, 4), noise=0.05, outliers=0.2)
    errors = np.array(fit(samples).errors())
    most = 1.345 * 1.4826 * np.median(abs(errors))
    terms = errors.clip(-most, most)[:, None] * [np.array(s.path) / s.seconds for s in samples]
    assert (abs(terms.sum(0)) < 1e-6 * abs(terms).sum(0)).all()


def test_the_sign_of_an_error():
    found = fit(made_up())
    slower = [Sample(call="send", ranks=2, payload=1000, seconds=2 * (ALPHA + 1000 * BETA))]
    assert found.errors(slower) == pytest.approx([-0.5])  # half of what was measured
    slow = Fit(alpha=ALPHA, beta=BETA, samples=(*slower, *slower))
    assert repr(slow).count(" 50%") == 2  # the median and the largest
    exact, double = (
        Sample(call="send", ranks=2, payload=1000, seconds=(ALPHA + 1000 * BETA) * factor)
        for factor in (1, 0.5)
    )
    mixed = Fit(alpha=ALPHA, beta=BETA, samples=(exact, exact, *slower, double, *slower))
    assert "alpha and beta of 5 samples" in repr(mixed)
    rows = [line.split() for line in repr(mixed).splitlines()]
    assert [row[-1] for row in rows if "error" in row] == ["50%", "100%"]


def test_each_backend_has_its_own_algorithm():
    ring = Sample(call="reduce_scatter", ranks=4, payload=1000, seconds=750.0, backend="nccl")
    assert ring.path == (3, 750)
    assert replace(ring, backend="gloo").path == (6, 1500)
    assert Fit(alpha=2.0, beta=1.0, samples=()).predict("reduce_scatter", 1000, 4) == 1512
    assert Sample(call="reduce_scatter", ranks=4, payload=1000, seconds=1.0).path == (6, 1500)
    assert Fit(alpha=0.0, beta=2.0, samples=()).errors([ring]) == [1.0]
    lines = Fit(alpha=0.0, beta=2.0, samples=(ring,)).plot().axes[0].lines
    assert [line.get_ydata()[0] for line in lines[:2]] == [1500, 750]  # predicted, measured


def test_neither_is_below_zero():
    def sends(seconds):
        return [Sample(call="send", ranks=2, payload=size, seconds=seconds(size)) for size in SIZES]

    falling = fit(sends(lambda size: 1e-3 - 1e-11 * size))  # a larger message takes less
    assert falling.beta == 0
    assert "without limit" in repr(falling)
    assert falling.alpha == pytest.approx(1e-3, rel=0.2)
    steep = fit(sends(lambda size: size * 1e-9 * size**0.2))  # more than in proportion
    assert steep.alpha == 0
    assert steep.beta > 0


@pytest.mark.parametrize("seconds", [[], [1.0], [1.0, 0.0]])
def test_too_little_to_fit(seconds):
    samples = [Sample(call="send", ranks=2, payload=8, seconds=s) for s in seconds]
    with pytest.raises(ValueError, match="two samples"):
        fit(samples)


def test_a_small_measurement():
    calls = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send")
    runs = launch(measure, workers=3, calls=calls, sizes=(1000, 40_000), repeats=2, inner=1)
    samples = runs[0]
    assert runs[1] == runs[2] == samples
    assert [(s.call, s.payload) for s in samples] == [
        (call, payload) for call in calls for payload in (1008, 40_008)
    ]
    assert all(s.seconds > 0 and s.ranks == 3 and s.backend == "gloo" for s in samples)
    found = fit(samples)
    assert found.alpha >= 0
    assert found.beta >= 0
    assert found.predict("all_reduce", 10**6, 3) > 0


def clocks(call, payload, device):
    """In place of torch_call; from here on this rank's clock has these times, in turn."""
    from helpers.comm import cost
    from helpers.measure.clock import Timing

    assert (payload, device.type) == (800, "cpu")
    seconds = iter([2.0, 8.0 + 4 * dist.get_rank(), 32.0])
    made, met, barrier = [], [], dist.barrier
    dist.barrier = lambda: met.append(None) or barrier()

    def time_of(timed, *, calls, **_):
        assert (len(made), calls) == (1, 7)  # once before, without a clock
        assert met.pop() is None  # ranks start each repeat together
        assert met == []
        return Timing(call, (next(seconds),), (0.0,))

    cost.time_of = time_of
    return lambda: made.append(None)


def test_the_median_of_the_slowest_rank_counts_and_a_message_is_half_of_there_and_back():
    calls = ("ours", "send")
    samples = launch(measure, calls=calls, sizes=(799,), repeats=3, inner=7, make=clocks)[0]
    assert [(s.call, s.seconds) for s in samples] == [("ours", 12.0), ("send", 6.0)]


def recorded(worker, calls):
    found = {}
    for call in calls:
        with ledger() as log:
            torch_call(call, 96, worker.device)()
        found[call] = sorted({(entry.call, entry.payload) for entry in log.entries})
    return found


def test_each_call_is_the_one_that_its_name_says():
    one = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
    for found in launch(recorded, calls=(*one, "send", "barrier"), device="cpu"):
        assert found.pop("send") == [("recv", 96), ("send", 96)]
        assert found.pop("barrier") == [("barrier", 0)]
        assert found == {call: [(call, 96)] for call in one}


def test_it_draws_itself():
    found = fit(made_up())
    assert "30 µs a message" in repr(found)
    assert "1.25e+09 bytes/s" in found._repr_html_()
    slow = Sample(call="all_reduce", ranks=3, payload=2 * SIZES[-1], seconds=9.0)
    some = Fit(alpha=ALPHA, beta=BETA, samples=(*found.samples[::-1],))
    lines = [list(map(tuple, line.get_xydata())) for line in some.plot([slow]).axes[0].lines]
    theirs = [(s.payload, s.seconds) for s in found.samples if s.ranks == 3]
    assert sorted(lines[0]) == lines[0]  # from small to large, whatever the samples' order
    assert [x for x, _ in lines[0]] == [x for x, _ in theirs] + [slow.payload]
    assert [y for _, y in lines[0][:-1]] == pytest.approx([y for _, y in theirs])
    assert sorted(lines[1]) == theirs
    assert lines[2] == [(slow.payload, 9.0)]
    axes = found.plot(made_up(worlds=(4,), sizes=SIZES[:1])).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "all_reduce, 2 ranks",
        "all_reduce, 3 ranks",
        "all_reduce, 4 ranks",
        "measured, fitted",
        "measured, not fitted",
    ]
