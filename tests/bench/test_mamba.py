"""The benchmark of Mamba: both sides do the same work. No timing decides."""

import torch

from tests.bench import mamba
from tests.bench.charts import written
from tests.models.peers import renamed


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
            if mixer == "mamba":
                assert torch.equal(
                    mamba.own(ours, tokens, 3), mamba.their_tokens(theirs, tokens, 3)
                )


def test_a_small_run_and_its_table(tmp_path):
    report = mamba.measure(quick=True)
    assert [row["work"] for row in report.rows] == [mamba.FORWARD, mamba.DECODING]
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in report.rows)
    assert len(written(report, tmp_path)) == 2
    assert [line[4] for line in report.table[1:]] == ["≤ 0.50", "≤ 0.50"]
