"""The benchmark of the scans: all contenders do the same work. No timing decides."""

import pytest
import torch

from helpers.models.scan.selective import selective_scan
from helpers.models.scan.ssd import ssd
from tests.bench import scan, scan_peers
from tests.bench.charts import written


@pytest.mark.parametrize("length", [1, 2, 3, 8, 37])
def test_the_parallel_peer_computes_the_selective_scan(length):
    inputs = [t.detach().double().requires_grad_() for t in scan.selective_inputs(length)]
    results = [scan_peers.parallel(*inputs), selective_scan(*inputs, form="loop")[0]]
    same(results, inputs)


def test_the_peer_of_the_duality_computes_it():
    inputs = [t.detach().double().requires_grad_() for t in scan.dual_inputs(192)]
    same([scan_peers.dual(*inputs), ssd(*inputs)[0]], inputs)


def same(results, inputs):
    torch.testing.assert_close(*results, rtol=0, atol=1e-11)
    gradients = [torch.autograd.grad(y.sin().sum(), inputs) for y in results]
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-9)


def test_a_small_run_and_its_table(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "LENGTHS", (1024,))
    report = scan.measure(quick=True)
    names = [scan.PARALLEL, *scan.OURS.values(), scan.DUAL, scan.CHUNKS]
    assert [row["contender"] for row in report.rows] == names
    assert all(row["median"] > 0 and row["peak"] > 0 for row in report.rows)
    assert len(written(report, tmp_path)) == len(names)
    cells = {line[1]: line for line in report.table[1:]}
    assert cells[scan.PARALLEL][3:5] == ["", ""]
    assert cells[scan.OURS["fused"]][4] == "≤ 0.35"
    assert cells[scan.OURS["fused"]][7] == "≤ 0.10"
    assert cells[scan.CHUNKS][4] == "≤ 0.90"
