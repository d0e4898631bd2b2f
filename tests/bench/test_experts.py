"""The benchmark of dense and sparse models: its table and its chart."""

import pytest

from helpers.models.counts import parameters
from helpers.scaling.experts import compared, config_of
from tests.bench import experts
from tests.bench.charts import drawn, written

LOSSES = {"dense": (2.0, 2.2), "bias": (1.9, 1.9)}
LOADS = {"loads": "0.5 0.1 0.1 0.3 " * 4, "dropped": 0.25, "distinct": "2 3"}


def test_its_table_and_its_chart(tmp_path):
    none = dict.fromkeys(LOADS, "")
    rows = [
        {"kind": kind, "seed": seed, "step": step, "flops": step * 1e9, "loss": loss}
        | (LOADS if kind == "bias" and step == 10 else none)
        for kind, losses in LOSSES.items()
        for seed, last in enumerate(losses)
        for step, loss in ((5, 3.0), (10, last))
    ]
    assert compared(rows)["bias"] == pytest.approx((1.9, -0.2, 12.7062 * 0.1), rel=1e-4)
    report = experts.report(rows)
    _, dense, sparse = report.table
    assert dense[4:] == ["2.100", "", "", ""]
    assert sparse[4:] == ["1.900", "-0.200 ± 1.271", "4.00 x the mean", "25.0 %"]
    count = parameters(config_of("bias"))
    assert sparse[1:3] == [f"{count.total:,}", f"{count.active:,}"]
    assert len(written(report, tmp_path)) == len(rows)
    less, dense = drawn("experts", tmp_path).axes[0].lines
    assert list(less.get_ydata()) == pytest.approx([0, -0.2])  # pairs with the same seed
    assert list(less.get_xdata()) == [5, 10]
    assert set(dense.get_ydata()) == {0}
