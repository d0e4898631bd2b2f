"""The benchmark of saving runs, and its table has a row for each contender. No timing decides."""

import shutil

from tests.bench import saving
from tests.bench.charts import written


def test_a_small_run_and_its_table(tmp_path):
    report = saving.measure(quick=True)
    rows = {row["contender"]: row for row in report.rows}
    more = bool(shutil.which("fio"))
    assert len(written(report, tmp_path)) == len(rows) == 6 + more
    assert all(row["blocked"] > 0 for row in report.rows)
    assert all(rows[name]["done"] >= rows[name]["blocked"] for name in rows if name != saving.COPY)
    assert [row[3] for row in report.table[1:]] == ["", "≤ 1.20", *[""] * (4 + more)]
