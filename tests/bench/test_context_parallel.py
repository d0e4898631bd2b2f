"""The benchmark of context parallelism: its peer is exact, and its tables."""

import torch

from helpers.comm.messages import Peers
from helpers.models.attention import Core
from helpers.plans.sequence_order import contiguous
from helpers.runtime.launch import launch
from tests.bench import context_parallel
from tests.bench.charts import written
from tests.bench.context_parallel import CONTENDERS, DOCUMENTS, PEER, TOKENS, whole_blocks


def trained(attention, inputs):
    q, k, v, weights = (one.detach().clone().requires_grad_() for one in inputs)
    (attention(q, k, v) * weights).sum().backward()
    return q.grad, k.grad, v.grad, weights.grad


def on_ranks(worker):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, 12, 4) for heads in (4, 2, 2, 4)]
    whole = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    own = slice(12 // worker.world_size * worker.rank, 12 // worker.world_size * (worker.rank + 1))
    parts, peers = contiguous(12, worker.world_size), Peers()
    found = trained(lambda *of: whole_blocks(*of, parts, peers), [x[:, :, own] for x in whole])
    wanted = [x[:, :, own] for x in trained(Core("explicit"), whole)]
    return max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))


def test_the_peer_equals_one_process():
    assert max(launch(on_ranks, 3, device="cpu")) < 1e-13


def test_its_table(tmp_path):
    assert sum(DOCUMENTS) == 8 * TOKENS
    costs = {"wire": 2**20, "kernel": None, "peak": 3 * 2**20, "model_states": 1}
    times = {name: [0.1 + 0.1 * (name == PEER)] * 4 for name in CONTENDERS}
    rows = [context_parallel.row(name, PEER, None, times, costs) for name in times]
    order = context_parallel.order_row(2, contiguous, (64,), 1)
    assert 0 < order["efficiency"] <= 1
    report = context_parallel.report(rows, [order | {"efficiency": 0.5}])
    assert report.table[3] == ["ring, zigzag", "100 ms", "0.50 (0.50–0.50)", "", "3.0 MiB",
                               "1.0 MiB"]  # fmt: skip
    assert "| contiguous      | 2     | 1         | 50.0%      | 67.0%" in report.notes
    assert len(written(report, tmp_path)) == 6
