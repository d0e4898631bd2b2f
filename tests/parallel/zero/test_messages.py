"""Bytes of a rank and step against the paper (section 7), unit by unit.

P bytes of parameters, padding included; N ranks; m micro-batches.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import GroupTransport, SharedTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules.plain import gpipe, one_f_one_b
from helpers.runtime.launch import launch

UNTIED = GPTConfig(vocab=33, context=8, width=12, layers=3, heads=2, tied=False)
KEPT = partial(Zero3, reshard_after_forward=False)
# owner -> bytes sent with m micro-batches, times P (N-1)/N
FACTORS = {
    Zero1: lambda m: 2,
    Zero2: lambda m: m + 1,
    Zero3: lambda m: 3 * m,
    KEPT: lambda m: 2 * m,
}
pytestmark = [
    pytest.mark.usefixtures("kept_ranks"),
    pytest.mark.filterwarnings("ignore:ZeRO stage"),
]


def counted(worker, cases):
    """(bytes sent in a step and in an evaluation, P of each row by unit) of each case."""
    torch.set_num_threads(1)
    found, meshes = [], {}
    for recipe, config, m in cases:
        layout = recipe.layout or Layout(dp=worker.world_size)
        mesh = meshes.setdefault(layout, None) or make_mesh(layout)
        meshes[layout] = mesh
        trainer = recipe(config, 0, mesh, micro_batches=m)
        batch = random_batch(trainer.data_rank, 6, 8, config.vocab)
        trainer.step(batch)
        with ledger() as log:
            trainer.step(batch)
        with ledger() as evaluated:
            trainer.evaluate(batch)
        owner, rows = trainer.owner, {}
        for unit, row in zip(owner.unit_of, owner.rows, strict=True):
            rows[unit] = rows.get(unit, 0) + row.row.size * row.shard.itemsize
        axes = "" if layout.axes == ("dp",) else "dp"  # the whole world is no axis of the mesh
        sent = [
            sum(e.wire for e in entries.of("send").entries if e.axes == axes)
            for entries in (log, evaluated)
        ]
        found.append((sent, rows, log.rows()))
        trainer.close()
    return found


def test_bytes_of_a_step():
    workers = 3  # which do not divide the rows
    cases = [(Recipe(owner=owner), UNTIED, m) for owner in FACTORS for m in (1, 3)]
    expected = [factor(m) for factor in FACTORS.values() for m in (1, 3)]
    for run in launch(counted, workers, device="cpu", cases=cases):
        for (sent, rows, _), factor, (recipe, _, _) in zip(run, expected, cases, strict=True):
            share = sum(rows.values()) * (workers - 1) / workers
            stage3 = recipe.owner in (Zero3, KEPT)
            assert sent == [factor * share, share if stage3 else 0]


def test_half_the_bytes_in_bf16():
    cases = [(Recipe(owner=Zero3, precision=p), UNTIED, 1) for p in (Plain(), Mixed())]
    for (plain, *_), (mixed, *_) in launch(counted, 2, device="cpu", cases=cases):
        assert mixed == [nbytes / 2 for nbytes in plain]


def test_recomputation_gathers_exactly_once_more_than_the_forward():
    """The recomputed forward and its backward share one gather of each block."""
    full = replace(UNTIED, recompute="full")
    cases = [(Recipe(owner=owner), c, 1) for owner in (Zero3, KEPT) for c in (UNTIED, full)]
    for without, again, kept, kept_again in launch(counted, 2, device="cpu", cases=cases):
        assert again[0] == without[0] == [3 * sum(again[1].values()) / 2, without[0][1]]
        assert kept_again[0] == kept[0]


def test_a_tied_embedding_is_gathered_once_in_a_step():
    cases = [(Recipe(owner=Zero3), replace(UNTIED, tied=True), m) for m in (1, 3)]
    for run in launch(counted, 2, device="cpu", cases=cases):
        for ((sent, _), rows, _), (_, _, m) in zip(run, cases, strict=True):
            tied = rows["embedding"]
            assert sent == (3 * m * (sum(rows.values()) - tied) + (1 + m) * tied) / 2


def test_a_pipeline_sends_each_micro_batch():
    layout = Layout(pp=2, dp=2)
    cases = [
        (Recipe(owner=owner, layout=layout, schedule=schedule), UNTIED, 4)
        for schedule in (gpipe, one_f_one_b)
        for owner in (Zero1, Zero2, Zero3)
    ]
    for run in launch(counted, 4, device="cpu", cases=cases):
        for ((sent, _), rows, _), (recipe, _, m) in zip(run, cases, strict=True):
            assert sent == FACTORS[recipe.owner](m) * sum(rows.values()) / 2


def test_gloo_s_own_calls_send_as_much_and_shared_memory_nothing():
    ways = [partial(Zero3, transport=t) for t in (GroupTransport, SharedTransport)]
    cases = [(Recipe(owner=owner), UNTIED, 1) for owner in (Zero3, *ways)]
    for direct, group, shared in launch(counted, 2, device="cpu", cases=cases):
        rows = {row["call"]: row for row in group[2]}
        calls = [rows["all_gather"], rows["all_to_all"]]
        assert sum(row["wire"] for row in calls) == direct[0][0]
        assert rows["all_gather"]["wire"] == 2 * rows["all_to_all"]["wire"]
        assert shared[0] == [0, 0]
        assert {r["call"]: r["wire"] for r in shared[2]}["reduce_scatter"] == 0
