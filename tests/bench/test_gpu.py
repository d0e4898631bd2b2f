"""The benchmarks of a GPU: what runs on the CPU too, runs here; and all of it where a GPU is."""

import pytest
import torch

from tests.bench import adam, gpu
from tests.bench.charts import written


def adam_on_cpu(numbers, tensors, rounds):
    forms = dict.fromkeys([*adam.FORMS, adam.TRITON], [0.002] * rounds)
    limits = {"peak": 1e11, "bandwidth": 1e12}
    return adam.rows_of(forms, dict.fromkeys(forms), limits, "a GPU", tensors, numbers)


@pytest.mark.parametrize(("free", "numbers"), [(80e9, 10**9), (23e9, 23 * 10**9 // 28)])
def test_a_smaller_gpu_gets_as_many_numbers_as_fit(monkeypatch, tmp_path, free, numbers):
    """On one tensor, PyTorch's loop has six tensors of that size at once: 24 bytes a number."""
    asked = []
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free), int(free)))
    monkeypatch.setattr(
        adam, "on_gpu", lambda *given: asked.append(given[0]) or adam_on_cpu(*given)
    )
    monkeypatch.setattr(gpu.scan, "on_gpu", lambda length: [])
    for name in ("small_tensors", "decodings", "calls"):
        monkeypatch.setattr(gpu, name, lambda *_: [])
    report = gpu.measure()
    assert asked == [numbers] * 3
    assert 24 * numbers < free
    first, second = written(report, tmp_path)[:2]
    assert (first["work"], second["work"]) == ("AdamW, 1 tensor",) * 2
    assert report.table[1][:3] == ["AdamW, 1 tensor", "for-loop", "2.0 ms"]
    assert report.table[2][:2] == ["", "foreach"]
    assert report.table[2][3:] == ["1.00 (1.00–1.00)", f"{28 * numbers / 2e9:.0%}"]


def test_decoders_write_the_same_tokens_and_their_times_are_compared():
    theirs, _, ours = gpu.decodings("cpu", 2, 3, rounds=2)
    assert theirs["ratio"] == 1
    assert ours["contender"] == "ours, operators"
    assert ours["median"] > 0


def test_the_time_of_small_tensors_is_that_of_one_step(monkeypatch):
    slept = iter([4.0, 2.0, 6.0])
    monkeypatch.setattr(adam, "step_of", lambda *_, **__: lambda: None)
    monkeypatch.setattr(gpu, "timed", lambda call: (lambda seconds: lambda: seconds)(next(slept)))
    rows = gpu.small_tensors([10, 10], 2, device="cpu")
    assert [row["median"] for row in rows] == [4 / gpu.STEPS, 2 / gpu.STEPS, 6 / gpu.STEPS]
    assert rows[0]["work"] == "AdamW, 2 tensors of 10 numbers"


def test_a_call_is_measured_on_a_fresh_rank_and_on_one_that_lives():
    fresh, lives = gpu.calls("cpu", 2)
    assert fresh["contender"] == "launch"
    assert lives["ratio"] < 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_small_run_on_a_gpu():
    report = gpu.measure(quick=True)
    works = list(dict.fromkeys(row["work"] for row in report.rows))
    assert len(works) == len(gpu.TENSORS) + 1 + len(gpu.scan.LENGTHS) + len(gpu.BATCHES) + 2
    assert all(row["median"] > 0 for row in report.rows)
