"""Steps on three axes: by hand, beside the schedules' bubble, and beside published throughput."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.mesh import Layout
from helpers.models.config import GPTConfig
from helpers.models.counts import parameters
from helpers.plans.schedules import bubble, interleaved, one_f_one_b, timeline
from helpers.simulate.three_axes import step
from helpers.simulate.topology import DGX_A100, DGX_H100, Link

CONFIG = GPTConfig(
    vocab=100,
    context=10,
    width=1000,
    heads=8,
    layers=4,
    mlp="gelu",
    norm="layer",
    positions="learned",
)
GPT2 = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
WORK = {"sequences": 8, "tokens": 10, "flops_per_second": 1e12}
# Bytes alone: 1 GB/s inside a node, a tenth of it between nodes.
BYTES = replace(
    DGX_H100,
    nodes=2,
    gpus_per_node=4,
    inside=Link(alpha=0.0, bytes_per_second=1e9),
    rail=Link(alpha=0.0, bytes_per_second=1e8),
)


def test_a_step_by_hand():
    """pp 2 over the nodes, dp 2 and tp 2 inside: four micro-batches of one sequence a replica."""
    found = step(CONFIG, Layout(pp=2, dp=2, tp=2), cluster=BYTES, **WORK)
    products = 3 * (4 * (4 * 10 * 10 * 1000 + 2 * 10 * 12 * 1000**2) + 2 * 10 * 1000 * 100)
    activation = 10 * 1000 * 2  # bytes of a sequence between layers
    computing = products / 2 / 2 / 1e12
    tp = (4 * 4 + 2) / 2 * activation / 1e9  # half of the blocks', embedding's and head's messages
    pp = 2 * activation / 1e8  # there and back, between nodes
    assert found.micro_batches == 4
    assert found.computing == pytest.approx(4 * computing)
    assert found.tp == pytest.approx(4 * tp)
    assert found.pp == pytest.approx(4 * pp)
    assert found.bubble == pytest.approx(computing + tp + pp)
    assert found.dp == pytest.approx(parameters(CONFIG).total / 4 * 4 / 1e9)  # 2 (d - 1)/d = 1 time
    assert found.flops == pytest.approx(8 * products)
    assert found.seconds == pytest.approx(sum(found.parts.values()))
    assert found.efficiency == pytest.approx(found.computing / found.seconds)
    assert found.flops_per_second == pytest.approx(8 * products / 8 / found.seconds)


def test_gradients_take_the_fastest_way():
    """Four replicas on two nodes: on two rails, S/2 for each; a flat ring would send 3/2 S."""
    found = step(CONFIG, Layout(dp=4, tp=2), cluster=BYTES, **WORK)
    gradients = parameters(CONFIG).total / 2 * 4
    assert found.dp == pytest.approx(gradients / 2 / 1e8)
    half = step(CONFIG, Layout(dp=4, tp=2), cluster=BYTES, **WORK, gradient_bytes=2)
    assert half.dp == pytest.approx(found.dp / 2)
    many = DGX_H100.of(64)  # eight nodes, and messages that cost their latency: a tree is faster
    slow = replace(many, rail=replace(many.rail, alpha=1.0))
    one = step(CONFIG, Layout(dp=8, tp=8), cluster=slow, **WORK)
    assert 6 <= one.dp < 7  # log2(8) messages up the tree, and as many down; around a ring 14


def test_numbers_of_another_width():
    layout = Layout(pp=2, dp=2, tp=2)
    two, four = (step(CONFIG, layout, cluster=BYTES, **WORK, number_bytes=size) for size in (2, 4))
    assert (four.pp, four.tp) == (pytest.approx(2 * two.pp), pytest.approx(2 * two.tp))
    assert (four.dp, four.computing) == (two.dp, two.computing)


def test_an_axis_of_one_gpu_costs_nothing():
    alone = step(CONFIG, Layout(tp=8), cluster=BYTES, **WORK)
    assert (alone.pp, alone.bubble, alone.dp) == (0, 0, 0)
    assert alone.tp > 0
    assert step(CONFIG, Layout(dp=1, tp=8, pp=1), cluster=BYTES, **WORK) == alone
    replicas = step(CONFIG, Layout(dp=8), cluster=BYTES, **WORK)
    assert (replicas.pp, replicas.bubble, replicas.tp) == (0, 0, 0)
    assert replicas.dp > 0


@settings(deadline=None)
@given(st.sampled_from([(2, 1), (4, 1), (2, 2)]), st.sampled_from([4, 8, 16]))
def test_the_bubble_is_that_of_the_schedule(pipeline, m):
    p, v = pipeline
    found = step(
        CONFIG, Layout(pp=p), cluster=BYTES.of(p), **WORK | {"sequences": m}, micro=1, chunks=v
    )
    schedule = interleaved(p, m, v) if v > 1 else one_f_one_b(p, m)
    per_rank = found.computing + found.tp + found.pp
    assert found.bubble / per_rank == pytest.approx(bubble(timeline(schedule)).over_ideal)


def test_chunks_and_sequence_parallelism_change_the_messages():
    layout = Layout(pp=2, dp=1, tp=4)
    plain = step(CONFIG, layout, cluster=BYTES, **WORK | {"tokens": 8})
    chunked = step(CONFIG, layout, cluster=BYTES, **WORK | {"tokens": 8}, chunks=2)
    assert chunked.pp == pytest.approx(2 * plain.pp)
    cut = step(CONFIG, layout, cluster=BYTES, **WORK | {"tokens": 8}, sequence=True)
    assert cut.pp == pytest.approx(plain.pp / 4)


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        (Layout(pp=2, cp=4), {}, "pp, dp and tp"),
        (Layout(pp=2, tp=2), {}, "not for 8 GPUs"),
        (Layout(dp=8), {"sequences": 12}, "no micro-batches"),
        (Layout(dp=2, pp=4), {"micro": 3}, "no micro-batches"),
        (Layout(pp=8), {}, "4 layers are too few"),
        (Layout(pp=4, tp=2), {"chunks": 2}, "4 layers are too few"),
        (Layout(dp=8), {"chunks": 2}, "interleaving"),
        (Layout(pp=2, dp=4), {"chunks": 2, "sequences": 12}, "interleaving"),
        (Layout(tp=8), {"flops_per_second": 0}, "positive"),
    ],
)
def test_refused(layout, changes, message):
    with pytest.raises(ValueError, match=message):
        step(CONFIG, layout, cluster=BYTES, **WORK | changes)


# Narayanan et al. 2021, table 2, "PTD Parallelism": TFLOP/s per GPU. The model-parallel sizes 96
# and 280 are 8 x 12 and 8 x 35 (section 4.1: t = 8). One sequence a micro-batch, 2,048 tokens,
# vocabulary 51,200; everything is recomputed, and counted as work. The table does not name the
# schedule: 1F1B is assumed.
TABLE_2 = {
    "175B": (
        {"width": 12288, "heads": 96, "layers": 96},
        12,
        1536,
        {384: 153, 768: 149, 1536: 141},
    ),
    "530B": (
        {"width": 20480, "heads": 128, "layers": 105},
        35,
        2240,
        {560: 171, 1120: 167, 2240: 159},
    ),
}


@pytest.mark.parametrize("name", TABLE_2)
def test_the_published_strong_scaling(name):
    """One rate is fitted to the first figure of each model; the others are within 2.5 %."""
    sizes, p, batch, published = TABLE_2[name]
    config = GPTConfig(vocab=51_200, context=2048, recompute="full", **sizes, **GPT2)
    found = {
        gpus: step(
            config,
            Layout(pp=p, dp=gpus // (8 * p), tp=8),
            cluster=DGX_A100.of(gpus),
            sequences=batch,
            tokens=2048,
            flops_per_second=190e12,
        ).flops_per_second
        for gpus in published
    }
    first, *others = published
    for gpus in others:
        simulated = found[gpus] / found[first] * published[first]
        assert simulated == pytest.approx(published[gpus], rel=0.025)


def test_the_published_best_tensor_parallel_size():
    """Narayanan et al. 2021, section 5.4.1: on 64 A100s, 161 billion parameters run fastest with
    tp = 8, the GPUs of a node. Batch of 128, as in figure 13.
    """
    config = GPTConfig(
        vocab=51_200, context=2048, width=20480, heads=128, layers=32, recompute="full", **GPT2
    )
    work = {
        "cluster": DGX_A100.of(64),
        "sequences": 128,
        "tokens": 2048,
        "flops_per_second": 190e12,
    }
    found = {t: step(config, Layout(pp=64 // t, tp=t), **work).seconds for t in (2, 4, 8, 16, 32)}
    assert min(found, key=found.get) == 8
    assert parameters(config).total == pytest.approx(162.2e9, rel=0.001)
