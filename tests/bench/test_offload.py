"""The benchmark of offload: its contenders move and save what it says. No timing decides."""

import shutil

from tests.bench import offload
from tests.bench.charts import written


def test_a_small_run_and_its_table(tmp_path):
    report = offload.measure(quick=True)
    rows = {(row["work"], row["contender"]): row for row in report.rows}
    assert len(written(report, tmp_path)) == len(rows) == 4 + 4 + 3 + bool(shutil.which("fio"))
    assert all(row["median"] > 0 for row in report.rows)
    for name in offload.BUFFERS:
        assert 0 <= rows["state on disk", name]["overlapped"] <= 1
    assert rows["state on disk", "1 buffer"]["overlapped"] < 1
    saved = [rows["activations", name]["saved"] for name in offload.ACTIVATIONS]
    assert saved[0] > saved[1] > saved[2] > 0
    assert (saved[3], rows["activations", "on the host"]["sent"]) == ("", saved[0])
    assert rows["updates on the host", "in the backward"]["overlapped"] > 0
    assert [line[3] == "" for line in report.table[1:]].count(True) == 3
