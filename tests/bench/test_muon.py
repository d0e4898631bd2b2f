"""The benchmark of Muon beside AdamW: its table and its chart."""

from helpers.scaling.optimizers import step_flops
from tests.bench import muon
from tests.bench.charts import drawn, written

LOSSES = {("AdamW", 0.1): (2.0, 2.2), ("AdamW", 0.2): (1.5, 1.6), ("Muon", 0.4): (1.4, 1.6)}


def test_its_table_and_its_chart(tmp_path):
    rows = [
        {"rule": rule, "rate": rate, "seed": seed, "step": step, "flops": step * 1e9, "loss": loss}
        for (rule, rate), losses in LOSSES.items()
        for seed, last in enumerate(losses)
        for step, loss in ((5, 3.0), (10, last))
    ]
    report = muon.report(rows)
    _, adamw, ours = report.table
    assert adamw[:4] == ["AdamW", "0.2", "0.1, 0.2", "10"]
    assert ours[4:6] == [f"{step_flops('Muon') / 1e6:,.0f} million", "1.500"]
    assert ours[6].startswith("-0.050 ± ")
    assert len(written(report, tmp_path)) == len(rows)
    lines = drawn("muon", tmp_path).axes[0].lines
    assert [line.get_ydata()[-1] for line in lines] == [1.5, 1.6, 1.4, 1.6]
