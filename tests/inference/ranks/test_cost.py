"""The predicted time of a token, by hand; and a transport that sends nothing."""

import pytest
import torch

from helpers.comm.cost import Fit
from helpers.inference.ranks.cost import SilentTransport, token_time
from helpers.models.gpt import GPTConfig
from helpers.runtime.launch import launch

CONFIG = GPTConfig(vocab=256, width=64, layers=3)
FIT = Fit(alpha=1e-4, beta=1e-9, samples=())


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_times_alpha_and_bytes_times_beta(ranks):
    found = token_time(CONFIG, FIT, ranks, 0.5, sequences=2, number_bytes=8)
    sums, gathers = 7 * 2 * (ranks - 1), ranks - 1  # steps in rings
    assert found.computation == 0.5
    assert found.latency == pytest.approx((sums + gathers) * 1e-4)
    in_bytes = sums / ranks * 2 * 64 * 8 + (ranks - 1) * 2 * 16
    assert found.bandwidth == pytest.approx(in_bytes * 1e-9)
    assert found.total == found.computation + found.latency + found.bandwidth


def test_a_fit_for_each_call():
    fits = {"all_reduce": FIT, "all_gather": Fit(alpha=1.0, beta=0.0, samples=())}
    found = token_time(CONFIG, fits, 2, 0.0, head="logits")
    assert found.latency == pytest.approx(1 + 14 * 1e-4)
    assert found.bandwidth == pytest.approx(14 * 64 * 4 / 2 * 1e-9)


def test_one_rank_computes_only():
    assert token_time(CONFIG, FIT, 1, 0.25).total == 0.25


def silent_calls(worker):
    transport = SilentTransport()
    if worker.rank == 0:
        return None  # it makes no call: any message would wait for it
    own, every = torch.tensor([1.0, 2.0]), torch.zeros(2, 2)
    transport.all_gather(every, own).wait()
    kept = torch.zeros(2)
    transport.reduce_scatter(kept, torch.tensor([[3.0, 4.0], [5.0, 6.0]])).wait()
    for call in (transport.all_reduce, transport.maximum):
        call(own).wait()
    return every.tolist(), kept.tolist(), own.tolist()


@pytest.mark.usefixtures("kept_ranks")
def test_no_call_waits_for_another_rank():
    every, kept, own = launch(silent_calls, 2, device="cpu", timeout=20)[1]
    assert every == [[1, 2], [1, 2]]
    assert kept == [5, 6]
    assert own == [1, 2]
