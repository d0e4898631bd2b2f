"""The benchmark of Mamba: both sides do the same work. No timing decides."""

import shutil

import pytest
import torch

from helpers.inference.decoder.compiled import Compiled
from helpers.models.gpt import kept_by
from tests.bench import mamba
from tests.bench.charts import written
from tests.models.peers import renamed

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_both_sides_compute_the_same():
    """With copied weights: the same logits, and the same greedy tokens."""
    torch.manual_seed(0)
    for mixer in ("mamba", "mamba2"):
        config = mamba.config_of(mixer)
        theirs = mamba.peer_of(config)
        ours = config.build()
        ours.load_state_dict(renamed(theirs.state_dict(), config))
        tokens = torch.randint(config.vocab, (1, 24))
        with torch.no_grad():
            found, expected = ours(tokens), theirs(tokens, use_cache=False).logits
            assert (found - expected).norm() < 1e-5 * expected.norm()
            found = mamba.own(Compiled(ours), kept_by(ours), tokens, 8)
            assert torch.equal(found, mamba.their_tokens(theirs, tokens, 8))


@needs_compiler
def test_a_small_run_and_its_table(tmp_path):
    report = mamba.measure(quick=True)
    assert [row["work"] for row in report.rows] == [mamba.FORWARD, *mamba.DECODING.values()]
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in report.rows)
    assert len(written(report, tmp_path)) == 3
    assert [line[4] for line in report.table[1:]] == ["≤ 0.50", "≤ 0.40", "≤ 0.40"]
