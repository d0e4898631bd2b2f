"""The benchmark of slow links: slower links, greater gains, by the formula. No timing decides."""

import pytest

from tests.bench import slow_links
from tests.bench.charts import written


def test_a_small_run_and_its_table(tmp_path):
    report = slow_links.measure(quick=True)
    assert len(written(report, tmp_path)) == len(slow_links.SHARES)
    gains = [row["formula"] for row in report.rows]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 1
    for row, line in zip(report.rows, report.table[1:], strict=True):
        assert row["pace"] == pytest.approx(row["share"] * row["even"])
        assert row["ZeRO++"] > 0
        assert line[-1] == f"{row['gain'] / row['formula'] - 1:+.0%}"


def test_the_formula_has_nothing_to_gain_at_the_break_even(monkeypatch):
    monkeypatch.setattr(slow_links, "SHARES", (1.0,))
    (row,) = slow_links.measure(quick=True).rows
    assert row["formula"] == pytest.approx(1)
