"""The benchmark of AdamW's updates: its rows, its table and its chart. No timing decides."""

import shutil

import pytest
import torch

from tests.bench import adam
from tests.bench.charts import drawn, written

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_a_small_run_its_table_and_its_chart(tmp_path, monkeypatch):
    monkeypatch.setattr(adam, "matmul_rate", lambda *_, **__: 1e11)
    rows = adam.on_cpu(1000, 2, adam.our_loop)  # in place of DeepSpeed's, which compiles a minute
    assert [row["contender"] for row in rows] == [*adam.FORMS, adam.OURS, adam.DEEPSPEED]
    assert [round(row["bytes"]) for row in rows] == [80, 80, 28, 28, 28]
    for row in rows:
        assert row["busy"] == pytest.approx(row["bytes"] * 1000 / row["median"] / row["bandwidth"])
        assert row["useful"] == pytest.approx(28 * 1000 / row["median"] / row["bandwidth"])
    report = adam.report(rows)
    assert len(written(report, tmp_path)) == 5
    words = [text.get_text() for text in drawn("adam", tmp_path).axes[0].texts]
    assert sum("ours, one loop in C" in word for word in words) == 1


@needs_compiler
def test_all_contenders_do_the_same_work():
    after = []
    for form in adam.FORMS.values():
        step = adam.step_of([5], "cpu", **form)
        step()
        step()
        after.append(step.__self__.param_groups[0]["params"][0].detach())
    ours = adam.our_loop(5)
    ours()
    after.append(ours())
    for p in after[1:]:
        torch.testing.assert_close(p, after[0], rtol=1e-5, atol=1e-6)
