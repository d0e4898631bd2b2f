"""The traces of real clusters, against what their sources say of them."""

import numpy as np
import pytest

from helpers.resilience import faults


def test_the_trace_of_400_servers():
    """InfiniteHBD's trace: 584 faults of 231 servers in 348 days; gaps are no Poisson process."""
    found = faults.servers()
    assert len(found) == 584
    assert {fault.server for fault in found} == set(range(231))
    assert [f.start for f in found] == sorted(f.start for f in found)
    assert all(0 < f.start <= f.end <= faults.DAYS for f in found)
    assert max(f.end for f in found) == faults.DAYS
    assert faults.variation([f.start for f in found]) == pytest.approx(1.756, abs=5e-4)
    counts = sorted((sum(f.server == s for f in found) for s in range(231)), reverse=True)
    assert sum(counts[:23]) / 584 == pytest.approx(0.28, abs=5e-3)
    assert found[0].what == "GPU"


def test_llama_3_was_interrupted_419_times():
    assert sum(faults.LLAMA_3.values()) == 419
    assert faults.LLAMA_3["faulty GPU"] / 419 == pytest.approx(0.353, abs=5e-4)  # printed: 30.1 %


def test_random_faults_have_the_mean_and_a_variation_of_one():
    times = faults.poisson(2.0, 20_000, seed=0)
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 20_000
    assert np.diff(times).mean() == pytest.approx(2.0, rel=0.03)
    assert faults.variation(times) == pytest.approx(1.0, abs=0.03)
    assert faults.poisson(2.0, 100, seed=1) != faults.poisson(2.0, 100, seed=2)
    assert faults.variation([0.0, 1.0, 2.0, 3.0]) == 0
