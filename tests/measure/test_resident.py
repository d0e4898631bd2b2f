import torch

from helpers.measure import resident
from helpers.measure.resident import resident_bytes

MiB = 2**20


def test_memory_that_is_used_counts():
    before = resident_bytes()
    assert before > 10 * MiB  # Python and PyTorch
    block = torch.ones(64 * MiB // 4)
    assert 60 * MiB < resident_bytes() - before < 80 * MiB
    del block


def test_without_proc_it_is_the_peak(monkeypatch, tmp_path):
    now = resident_bytes()
    monkeypatch.setattr(resident, "STATM", tmp_path / "none")
    assert 0.5 * now < (peak := resident_bytes()) < 100 * now
    monkeypatch.setattr(resident.sys, "platform", "darwin")  # counts bytes there, here kibibytes
    assert 900 < peak / resident_bytes() <= 1024
