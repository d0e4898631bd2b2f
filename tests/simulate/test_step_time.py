"""Steps of any plan: the pipeline beside its timeline, limits by hand, memory by kind."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.layout import Layout
from helpers.models.counts import parameters
from helpers.models.gpt import GPTConfig
from helpers.plans.schedules import gpipe, interleaved, one_f_one_b, timeline, zero_bubble_h1
from helpers.plans.step_messages import data_messages
from helpers.plans.zero_traffic import zero_traffic
from helpers.simulate import kernels
from helpers.simulate.hardware import A100
from helpers.simulate.kernels import Rates, quantised
from helpers.simulate.links import Links
from helpers.simulate.memory import at, memory
from helpers.simulate.plan import Plan, cut, rows_of, wire
from helpers.simulate.plan import parameters as parameters_of
from helpers.simulate.step_time import StageCosts, StageTime, makespan, step_time
from helpers.simulate.topology import DGX_A100

GPT = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
CONFIG = GPTConfig(
    vocab=51_200, context=2048, width=4096, heads=32, layers=8, attention="explicit", dropout=0.1,
    recompute="full", **GPT,
)  # fmt: skip
RATES = Rates()


def plan(sequences=32, micro=1, **changes):
    layout = Layout(**{axis: changes.pop(axis) for axis in ("pp", "dp", "cp", "tp")
                       if axis in changes} or {"dp": 1})  # fmt: skip
    return Plan(layout=layout, sequences=sequences, tokens=2048, micro=micro, **changes)


def step(config=CONFIG, cluster=DGX_A100, rates=RATES, **changes):
    one = plan(**changes)
    return step_time(config, one, cluster.of(one.layout.world_size), rates)


# Products


def test_a_large_product_reaches_the_share_of_the_peak():
    n = 8192
    best = 2 * n**3 / (A100.peak("float16") * RATES.matrix)
    assert best < RATES.product(n, n, n) < 1.1 * best


@pytest.mark.parametrize(
    ("m", "n", "k", "batch"),
    [(1, 4096, 4096, 1), (64, 64, 65536, 1), (4096, 8, 4096, 1), (128, 128, 128, 10_800)],
)
def test_a_product_is_never_faster_than_memory_or_peak(m, n, k, batch):
    moved, flops = 2 * batch * (m * k + k * n + m * n), 2 * batch * m * n * k
    assert RATES.product(m, n, k, batch) > A100.seconds(flops, moved, "float16")


def test_each_doubling_of_the_hosts_slows_the_slowest():
    alone, *more = (RATES.launching(10, ranks) for ranks in (1, 2, 4, 8))
    assert alone == pytest.approx(10 * RATES.launch)
    assert more == pytest.approx([alone * (1 + k * RATES.waiting) for k in (1, 2, 3)])


def test_the_last_wave_counts_as_a_whole_one():
    """One more row of tiles than the 108 multiprocessors need costs most of a wave."""
    full, over = (RATES.product(128 * rows, 4096, 4096) for rows in (27, 28))
    assert over / full > 28 / 27
    assert quantised(1.01) == pytest.approx(0.8 * 2 + 0.2 * 1.01)
    assert quantised(0.1) == 1


def test_rates_scale():
    slow = RATES.times(compute=2, host=3, network=4)
    assert slow.product(512, 512, 512) == pytest.approx(2 * RATES.product(512, 512, 512))
    assert slow.launch == pytest.approx(3 * RATES.launch)
    assert slow.network == pytest.approx(RATES.network / 4)
    assert slow.call == pytest.approx(4 * RATES.call)


def test_a_short_sum_leaves_tiles_unpaid():
    """Of 64 numbers each: slower than the memory, and than a part of a long sum."""
    short, long = (RATES.product(8192, 8192, k) for k in (64, 8192))
    assert short > 1.3 * RATES.moving(2 * 8192 * (8192 + 2 * 64))
    assert short > 1.5 * long * 64 / 8192


def test_sequence_parallelism_cuts_the_work_between_the_layers():
    whole, cut = (kernels.block(CONFIG, RATES, 4, 2048, ranks=8, sequence=on) for on in (0, 1))
    assert cut.forward < whole.forward
    assert cut.core == whole.core


def test_an_unfused_softmax_costs_memory_and_launches():
    """Megatron-LM fuses it where sequences times heads of a GPU divide by 4."""
    small = replace(CONFIG, width=1024, heads=16)
    fused, plain = (
        kernels.block(small, RATES, b, 1024, ranks=8) for b in (2, 1)
    )  # 4 and 2 matrices
    assert plain.launching > fused.launching
    assert plain.core > 0.6 * fused.core
    assert kernels.block(replace(small, attention="sdpa"), RATES, 1, 1024).core < plain.core * 8


@pytest.mark.parametrize(
    "changes",
    [{}, {"tied": False}, {"bias": False}, {"kv_heads": 8}, {"mlp": "swiglu"}, {"norm": "rms"},
     {"positions": "rotary"}, {"mlp": "none"}, {"head": 64},
     {"mlp": "swiglu", "norm": "rms", "bias": False}],
)  # fmt: skip
def test_counted_without_torch_as_with_it(changes):
    config = replace(CONFIG, **changes)
    assert kernels.total(config) == parameters(config).total


def test_the_head_reads_and_writes_each_logit():
    found = kernels.head(CONFIG, RATES, 2048, 8)
    n = 51_200 / 8
    products = sum(RATES.product(*shape) for shape in
                   ((2048, n, 4096), (2048, 4096, n), (4096, n, 2048)))  # fmt: skip
    loss = found.forward + found.backward - products
    assert loss == pytest.approx(RATES.moving(2048 * n * RATES.logit, 10))
    assert found.forward < found.backward


# The pipeline

TIMES = st.floats(0.5, 2.0)


def stages_of(forwards, backwards):
    return [
        StageTime(forward=f, backward=b, gpu=f + b, messages=0.0)
        for f, b in zip(forwards, backwards, strict=True)
    ]


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 5), st.integers(1, 40), st.sampled_from([0.0, 0.3]))
def test_1f1b_takes_as_long_as_its_timeline(data, p, m, send):
    forwards, backwards = (data.draw(st.lists(TIMES, min_size=p, max_size=p)) for _ in range(2))
    spans = timeline(one_f_one_b(p, m), StageCosts(forwards, backwards, send))
    one = Plan(layout=Layout(pp=p), sequences=m, tokens=1)
    stages = stages_of(forwards, backwards)
    real = max(span.stop for span in spans)
    exact = m <= 4 * p
    assert makespan(stages, one, send) == pytest.approx(real, rel=1e-12 if exact else 0.02)
    same = makespan(stages, replace(one, schedule=one_f_one_b), send)
    assert same == pytest.approx(real)


@pytest.mark.parametrize("send", [0.0, 0.05, 0.3])
@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 4), (8, 2, 16)])
def test_chunks_shorten_the_bubble_as_in_the_timeline(p, v, m, send):
    one = Plan(layout=Layout(pp=p), sequences=m, tokens=1, chunks=v)
    spans = timeline(interleaved(p, m, v), StageCosts([1 / v] * p * v, [2 / v] * p * v, send))
    real = max(span.stop for span in spans)
    assert makespan(stages_of([1.0] * p, [2.0] * p), one, send) == pytest.approx(real)


def test_other_schedules_have_their_own_bubble():
    found = {
        name: step(pp=4, sequences=8, schedule=schedule).parts["bubble"]
        for name, schedule in (("1f1b", one_f_one_b), ("gpipe", gpipe), ("zb", zero_bubble_h1))
    }
    assert found["gpipe"] == pytest.approx(found["1f1b"], rel=0.02)
    assert found["zb"] < 0.8 * found["1f1b"]
    assert step(pp=4, sequences=8).parts["bubble"] == pytest.approx(found["1f1b"])


def test_the_last_stage_has_the_head_and_is_the_slowest():
    whole, cut4 = step().parts, step(pp=4).parts
    assert cut4["computing"] > 1.05 * whole["computing"] / 4
    assert step(pp=4, rates=RATES.times(network=9)).parts["pp"] > cut4["pp"] > 0


def test_blocks_and_tables_of_each_stage():
    assert [on.blocks for on in cut(CONFIG, plan(pp=3))] == [3, 3, 2]
    for chunks in ({"chunks": 3}, {"schedule": partial(interleaved, chunks=3)}):
        assert [on.blocks for on in cut(CONFIG, plan(pp=2, **chunks))] == [6, 6]  # no half blocks
    last, each = cut(CONFIG, plan(pp=2))[-1], kernels.numbers(CONFIG)
    tied, untied = (replace(CONFIG, tied=on) for on in (True, False))
    rows = [rows_of(config, plan(pp=2), last) for config in (tied, untied)]
    own = 4 * each["block"] + each["norm"]
    assert [parameters_of(row) for row in rows] == [own + each["head"]] * 2  # without positions
    assert step(config=tied, pp=2).parts["dp"] > 0  # the ends add the table's gradients
    assert step(config=untied, pp=2).parts["dp"] == 0
    four = replace(DGX_A100, gpus_per_node=2)  # the ends are on two nodes
    near, far = (step(config=tied, cluster=c, pp=4).parts["dp"] for c in (DGX_A100, four))
    assert far > 2 * near
    two, eight = (step(config=tied, pp=p).parts["dp"] for p in (2, 8))
    assert eight == pytest.approx(two)  # the ends are two ranks, however many are between


def test_a_send_between_stages_by_hand():
    """Each of 4 GPUs sends a quarter. Then they gather, unless the tokens are cut."""
    for sequence in (False, True):
        one = plan(pp=2, tp=4, sequence=sequence)
        links, size, gather = Links(one, DGX_A100, RATES), 8e6, 3 / 4 * 8e6
        near = DGX_A100.inside
        sends = RATES.call + near.alpha + size / 4 / near.bytes_per_second
        gathers = RATES.call + 3 * near.alpha + gather / near.bytes_per_second
        assert links.send(size) == pytest.approx(sends + (0 if sequence else gathers))


def test_cuts_move_blocks_away_from_the_head():
    """The last of 4 stages has the head: it is the slowest, unless it has fewer blocks."""
    equal, fewer, more = (
        step(pp=4, sequences=64, cuts=cuts).seconds for cuts in (None, (3, 2, 2, 1), (1, 2, 2, 3))
    )
    assert step(pp=4, sequences=64, cuts=(2, 2, 2, 2)).seconds == equal
    assert fewer < more
    assert equal < more


# The step


def test_parts_that_cost_nothing_alone():
    alone = step(sequences=4)
    assert alone.parts["tp"] == alone.parts["pp"] == alone.parts["dp"] == 0
    assert alone.parts["bubble"] == pytest.approx(0, abs=1e-9)
    assert alone.seconds == pytest.approx(sum(alone.parts.values()))
    same = step(sequences=4, pp=1, dp=1, cp=1, tp=1)
    assert same.parts == alone.parts


def test_recomputing_costs_seconds_and_saves_bytes():
    ways = [replace(CONFIG, recompute=way) for way in ("none", "selective", "full")]
    seconds, kept = zip(
        *[(s.parts["computing"], s.memory["activations"]) for s in map(step, ways)], strict=True
    )
    assert seconds[0] < seconds[1] < seconds[2] < 4 / 3 * seconds[0]
    assert kept[0] > kept[1] > 5 * kept[2]


def test_zero_shards_bytes_and_sends_more():
    found = [step(dp=8, zero=stage) for stage in range(4)]
    assert all(a.memory["optimizer"] > 7 * b.memory["optimizer"]
               for a, b in zip(found[:1] * 3, found[1:], strict=True))  # fmt: skip
    states = [sum(s.memory[kind] for kind in ("parameters", "gradients", "optimizer"))
              for s in found]  # fmt: skip
    assert states == sorted(states, reverse=True)
    each, one = kernels.numbers(CONFIG), plan(dp=8, zero=3)
    assert found[3].memory["gathered"] == 2 * (2 * each["block"] + each["embedding"])
    rows = [rows_of(CONFIG, one, on) for on in cut(CONFIG, one)]
    sends = data_messages(wire(CONFIG, one, cut(CONFIG, one), rows), rows[0])
    gathers = {row.payload: row.times for row in sends if row.call == "all_gather"}
    assert gathers == {2 * each["block"]: 8, 2 * each["embedding"]: 1, 2 * each["norm"]: 8}
    sent = [sum(zero_traffic(1.0, 8, stage, micro_batches=4).values()) for stage in range(4)]
    times = [s.parts["dp"] for s in found]
    assert found[1].parts["optimizer"] < found[0].parts["optimizer"] - 0.001
    assert times[3] / times[1] == pytest.approx(sent[3] / sent[1], rel=0.25)
    assert times[2] / times[1] == pytest.approx(sent[2] / sent[1], rel=0.25)


def test_overlap_hides_at_most_a_backward():
    slow = RATES.times(network=50)
    cluster = replace(DGX_A100, gpus_per_node=1)
    seen, hidden = (step(dp=8, cluster=cluster, rates=slow, overlap=on) for on in (False, True))
    assert 0 < hidden.parts["dp"] < seen.parts["dp"]
    assert step(dp=8, overlap=True).parts["dp"] < step(dp=8).parts["dp"]
    seen, hidden = (
        step(dp=8, cluster=cluster, rates=slow, overlap=on, zero=3).parts for on in (False, True)
    )
    whole = seen["computing"] + seen["host"] + seen["tp"]  # ZeRO-3: all of the step hides messages
    assert seen["dp"] - hidden["dp"] == pytest.approx(whole)
    one, four = (  # ZeRO-1: the last backward; ZeRO-2: that of each of 4 micro-batches
        step(dp=8, cluster=cluster, rates=slow, zero=zero).parts["dp"]
        - step(dp=8, cluster=cluster, rates=slow, overlap=True, zero=zero).parts["dp"]
        for zero in (1, 2)
    )
    assert four == pytest.approx(4 * one)


def test_tensor_parallelism_between_nodes_is_slow():
    near, far = (step(tp=8, cluster=replace(DGX_A100, gpus_per_node=n)) for n in (8, 4))
    assert far.parts["tp"] > 2 * near.parts["tp"]
    seen = step(tp=8, hidden_tp=False)
    assert 0.6 < near.parts["tp"] / seen.parts["tp"] < 0.8  # a third can hide behind weights
    hidden = step(tp=8, cluster=replace(DGX_A100, gpus_per_node=1), hidden_tp=False).parts["tp"]
    hidden -= step(tp=8, cluster=replace(DGX_A100, gpus_per_node=1)).parts["tp"]
    weights = sum(RATES.product(4096, n / 8, 2048) for n in (3 * 4096, 4 * 4096))
    assert hidden == pytest.approx(32 * 8 * weights)  # the gradients of the column-parallel ones


def test_context_parallelism_cuts_tokens_and_sends_keys():
    whole, cut = step(cp=1), step(cp=4)
    assert cut.parts["computing"] < whole.parts["computing"] / 3
    assert cut.memory["activations"] == pytest.approx(whole.memory["activations"] / 4)
    slow = replace(DGX_A100, gpus_per_node=1)
    assert step(cp=4, cluster=slow).parts["tp"] > 0
    assert cut.parts["tp"] == 0  # the cores hide the keys' way around


def test_small_kernels_wait_for_the_host():
    small = replace(CONFIG, width=256, heads=4)
    found = step(config=small)
    assert found.parts["host"] > found.parts["computing"]
    kept = step(config=replace(small, recompute="none"))
    again, once = (one.parts["host"] + one.parts["computing"] for one in (found, kept))
    assert again == pytest.approx(3 / 2 * once, rel=0.1)  # a forward is launched twice
    assert step(micro=4).parts["host"] < 0.01 * step(micro=4).parts["computing"]


def test_memory_by_hand():
    """A stage of 4 has 2 blocks, and keeps each block's input of 2 B T D bytes."""
    one, inputs = plan(pp=4, sequences=16), 2 * 2048 * 4096
    kept = [at(CONFIG, one, place)["activations"] for place in range(4)]
    assert kept == [n * 2 * inputs for n in (4, 3, 2, 1)]  # micro-batches of 1F1B
    few = [at(CONFIG, plan(pp=4, sequences=2), place)["activations"] for place in range(4)]
    assert few == [n * 2 * inputs for n in (2, 2, 2, 1)]
    all_of_them = at(CONFIG, replace(one, schedule=gpipe), 0)
    assert all_of_them["activations"] == 16 * 2 * inputs
    for m, place, most in ((16, 0, 5), (16, 1, 3), (2, 0, 4)):  # chunks of 2 blocks in flight
        one_of = partial(plan, pp=2, sequences=m)
        for chunks in (one_of(chunks=2), one_of(schedule=partial(interleaved, chunks=2))):
            assert at(CONFIG, chunks, place)["activations"] == most * 2 * inputs
    assert memory(CONFIG, one) in (at(CONFIG, one, 0), at(CONFIG, one, 3))
    for recompute in ("full", "none"):  # a block that runs again; the logits: one after the other
        config = replace(CONFIG, recompute=recompute)
        block, last = (at(config, one, place)["working"] for place in (0, 3))
        assert last == max(block, 8 * 2048 * 51_200)
        assert (block > 0) == (recompute == "full")
    for t, saved in ((1, 24), (16, 1)):  # heads of keys whose rows are not kept
        grouped, all_heads = (
            at(replace(CONFIG, attention="sdpa", recompute="none", kv_heads=n), plan(tp=t), 0)
            for n in (8, 32)
        )
        less = all_heads["activations"] - grouped["activations"]
        assert less == pytest.approx(8 * 2 * saved * 128 * inputs / 4096)
    for axes in ({"dp": 8}, {"dp": 2, "cp": 4}):
        shards = [at(CONFIG, plan(**axes, zero=zero), 0)["optimizer"] for zero in (0, 1)]
        assert shards[0] == 8 * shards[1] == 12 * parameters(CONFIG).total


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequences": 6, "dp": 4}, "no micro-batches of 1 on 4"),
        ({"pp": 16}, "8 layers are too few"),
        ({"chunks": 2}, "interleaving"),
        ({"pp": 2, "chunks": 2, "sequences": 3}, "interleaving"),
        ({"pp": 2, "schedule": lambda p, m: gpipe(p, 1)}, "not for 2 ranks and 32 micro-batches"),
        ({"tp": 64}, "32 query heads do not divide"),
        ({"cp": 128, "tp": 32, "sequence": True}, "16 tokens do not divide over 32 GPUs"),
        ({"tp": 4, "config": replace(CONFIG, width=96, heads=12, kv_heads=6)}, "6 key heads on 4"),
        ({"micro": 0}, "must be positive"),
        ({"pp": 2, "cuts": (8,)}, "do not give 2 stages"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        step(**changes)


def test_refused_axes_and_clusters():
    with pytest.raises(ValueError, match="the axes are pp, dp, cp, tp"):
        step_time(CONFIG, Plan(layout=Layout(x=8), sequences=8, tokens=8), DGX_A100)
    with pytest.raises(ValueError, match="not for 8 GPUs"):
        step_time(CONFIG, plan(dp=2), DGX_A100)
