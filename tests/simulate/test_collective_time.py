"""Times of collectives: against messages stepped one by one, closed forms, and published runs."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.comm.volume import path, sent
from helpers.plans.messages import Message
from helpers.simulate.collective_time import (
    ALGORITHMS,
    CALLS,
    bus_bandwidth,
    bus_factor,
    fastest,
    largest_bus_bandwidth,
    loads,
    message_seconds,
    seconds,
)
from helpers.simulate.topology import DGX_H100, Link, Topology
from tests.simulate.stepping import flat_all_reduce, rails_all_reduce

FILE = json.loads(Path(__file__).with_name("published_clusters.json").read_text())
BUSBW = FILE["all_reduce_busbw"]
approx = partial(pytest.approx, rel=1e-9)
HUGE = 64e9  # bytes: latency no longer counts
SIZES = st.floats(1, 1e12)
PAIRS = [(c, a) for c in CALLS for a in ALGORITHMS if (c, a) != ("all_to_all", "tree")]
RINGS = [(c, a) for c, a in PAIRS if c not in ("send", "all_to_all")]


@st.composite
def clusters(draw):
    """The link within a node at least as fast as a card, and no slower to start."""
    slow, fast = sorted([draw(st.floats(1e9, 1e12)), draw(st.floats(1e9, 1e12))])
    near, far = sorted([draw(st.floats(0, 1e-4)), draw(st.floats(0, 1e-4))])
    return Topology(
        nodes=draw(st.integers(1, 300)),
        gpus_per_node=draw(st.integers(1, 16)),
        inside=Link(alpha=near, bytes_per_second=fast),
        rail=Link(alpha=far, bytes_per_second=slow),
        gpus_per_card=draw(st.integers(1, 8)),
    )


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("per_node", [1, 2, 3, 8])
def test_rails_message_by_message(nodes, per_node):
    """Nobody waits for anybody else: stepping gives the formula's time, one level after another."""
    cluster = DGX_H100.of(per_node)
    cluster = replace(cluster, nodes=nodes)
    size = 1e8
    stepped = rails_all_reduce(cluster, size)
    assert (stepped.numbers == stepped.total).all()  # it is an all-reduce
    inside, rail = loads("all_reduce", size, cluster, "rails")
    assert stepped.busiest("inside") == approx(inside.bytes, abs=1e-3)
    assert stepped.busiest("rail") == approx(rail.bytes, abs=1e-3)
    predicted = seconds("all_reduce", size, cluster, "rails", pipelined=False)
    assert predicted == approx(stepped.seconds, abs=1e-15)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
@pytest.mark.parametrize(("nodes", "per_node"), [(1, 5), (4, 1), (2, 4), (3, 8), (8, 2)])
def test_a_flat_ring_message_by_message(nodes, per_node, size):
    cluster = replace(DGX_H100, nodes=nodes, gpus_per_node=per_node)
    stepped = flat_all_reduce(cluster, size)
    assert (stepped.numbers == stepped.total).all()
    inside, rail = loads("all_reduce", size, cluster, "flat")
    assert stepped.busiest("inside") == approx(inside.bytes, abs=1e-3)
    assert stepped.busiest("rail") == approx(rail.bytes, abs=1e-3)
    predicted = seconds("all_reduce", size, cluster, "flat")
    if nodes == 1 or per_node == 1:  # all links alike
        assert predicted == approx(stepped.seconds)
        return
    # Unlike links: a chunk's latencies hide behind other chunks on the slow card, in part. And a
    # chunk may cross a card twice more than the count of steps says: from where it starts.
    latency = inside.latency(cluster.inside) + rail.latency(cluster.rail)
    chunk = size / cluster.gpus / cluster.rail.bytes_per_second
    assert stepped.seconds <= predicted + 2 * cluster.rail.alpha + 2 * chunk
    assert stepped.seconds >= max(latency, rail.transfer(cluster.rail))
    assert predicted < 2.1 * stepped.seconds  # a sum of two is at most twice the larger


@pytest.mark.parametrize(("call", "algorithm"), RINGS)
@pytest.mark.parametrize("gpus", [1, 2, 5, 8])
def test_one_node_is_a_ring(call, algorithm, gpus):
    """Nothing goes over a card, and the flat formulas of `comm.volume` hold."""
    inside, rail = loads(call, 1000.0, DGX_H100.of(gpus), algorithm)
    assert (rail.messages, rail.bytes) == (0, 0)
    most = max(sent(call, 1000, gpus, rank=rank, backend="nccl") for rank in range(gpus))
    assert inside.bytes == approx(most)
    assert path(call, 1000, gpus, backend="nccl") == (inside.messages, approx(most))


@pytest.mark.parametrize(("call", "algorithm"), RINGS)
def test_one_gpu_per_node_is_one_rail(call, algorithm):
    cluster = replace(DGX_H100, nodes=16, gpus_per_node=1)
    inside, rail = loads(call, 1000.0, cluster, algorithm)
    assert (inside.messages, inside.bytes) == (0, 0)
    steps = 4 if algorithm == "tree" else 15
    assert rail.messages == steps * (2 if call == "all_reduce" else 1)
    if (call, algorithm) != ("all_reduce", "tree"):
        assert rail.bytes == approx(
            max(sent(call, 1000, 16, rank=r, backend="nccl") for r in (0, 1))
        )


@pytest.mark.parametrize("nodes", [2, 16, 128])
def test_latencies_are_those_of_nccls_model(nodes):
    """Infinite bandwidth leaves the latencies, as in src/graph/tuning.cc."""
    near, far = 1e-6, 1e-3
    cluster = replace(
        DGX_H100,
        nodes=nodes,
        inside=Link(alpha=near, bytes_per_second=float("inf")),
        rail=Link(alpha=far, bytes_per_second=float("inf")),
    )
    ranks = 8 * nodes
    steps, outside = 2 * (ranks - 1), 2 * (nodes - 1)
    ring = (steps - outside) * near + outside * far
    tree = 2 * ((ranks / nodes - 1) * near + (nodes.bit_length() - 1) * far)  # log2i
    assert seconds("all_reduce", 1e9, cluster, "flat") == approx(ring)
    assert seconds("all_reduce", 1e9, cluster, "tree") == approx(tree)


@pytest.mark.parametrize(
    ("nodes", "steps", "carried"), [(2, 2, 1), (4, 4, 2), (5, 6, 2), (8, 6, 2)]
)
def test_an_all_reduce_in_two_trees(nodes, steps, carried):
    """Each tree has half of the buffer; a place sends it twice up and twice down at most."""
    _, rail = loads("all_reduce", 1.0, replace(DGX_H100, nodes=nodes, gpus_per_node=1), "tree")
    assert (rail.messages, rail.bytes) == (steps, carried)


def test_messages_take_their_time_one_after_another():
    of = {"axis": "tp", "ranks": 1024}
    sent = [Message(call="all_reduce", payload=1e9, times=3, **of),
            Message(call="all_gather", payload=1e3, **of)]  # fmt: skip
    cluster = DGX_H100.of(1024)
    assert {fastest(one.call, one.payload, cluster) for one in sent} != {"rails"}
    for algorithm in (None, "flat"):
        big, small = (
            seconds(one.call, one.payload, cluster,
                    algorithm or fastest(one.call, one.payload, cluster))
            for one in sent
        )  # fmt: skip
        assert message_seconds(sent, cluster, algorithm) == approx(3 * big + small)


def test_an_all_reduce_by_hand():
    """1 GB on two nodes of 8: 7/4 GB within, 1/8 GB on each card."""
    cluster = DGX_H100.of(16)
    inside, rail = loads("all_reduce", 1e9, cluster, "rails")
    assert (inside.messages, inside.bytes) == (14, 1.75e9)
    assert (rail.messages, rail.bytes) == (2, 0.125e9)
    latency = 14 * 3.4e-6 + 2 * 14e-6
    within, between = 1.75e9 / 370.8e9, 0.125e9 / 48e9
    assert seconds("all_reduce", 1e9, cluster) == approx(latency + within)
    both = seconds("all_reduce", 1e9, cluster, pipelined=False)
    assert both == approx(latency + within + between)
    _, card = loads("all_reduce", 1e9, cluster, "flat")
    assert card.bytes == 1.875e9  # 15 times as much on the one card


def test_all_parts_find_their_way():
    """An all-to-all: what leaves the nodes is the same by either way, in one card or in eight."""
    cluster, size = DGX_H100.of(32), 3200.0
    inside, rail = loads("all_to_all", size, cluster, "rails")
    outside = size * 24 / 32  # each GPU's, for GPUs of other nodes
    assert rail.bytes == approx(outside)
    assert (inside.bytes, inside.messages, rail.messages) == (approx(size * 7 / 8), 7, 3)
    inside, rail = loads("all_to_all", size, cluster, "flat")
    assert rail.bytes == approx(8 * outside)
    assert (inside.bytes, inside.messages, rail.messages) == (approx(size * 7 / 32), 7, 24)


def test_a_send():
    cluster = DGX_H100.of(16)
    assert seconds("send", 1e6, cluster) == approx(14e-6 + 1e6 / 48e9)
    assert seconds("send", 1e6, cluster.group([0, 1])) == approx(3.4e-6 + 1e6 / 370.8e9)
    shared = replace(cluster, gpus_per_card=2)
    assert seconds("send", 1e6, shared) == approx(14e-6 + 2e6 / 48e9)


@given(clusters(), SIZES, st.sampled_from(PAIRS))
def test_more_rails_are_never_slower(cluster, size, pair):
    call, algorithm = pair
    fewer = replace(cluster, gpus_per_card=cluster.gpus_per_card + 1)
    more = seconds(call, size, cluster, algorithm)
    assert more <= seconds(call, size, fewer, algorithm) * (1 + 1e-12)


@given(clusters(), SIZES, st.booleans())
def test_rails_are_never_slower_than_the_flat_ring(cluster, size, pipelined):
    """One level after the other, too, if every GPU has a card of its own."""
    cluster = replace(cluster, gpus_per_card=cluster.gpus_per_card if pipelined else 1)
    for call in ("all_reduce", "reduce_scatter", "all_gather"):
        rails = seconds(call, size, cluster, "rails", pipelined=pipelined)
        assert rails <= seconds(call, size, cluster, "flat") * (1 + 1e-9)


@given(clusters(), SIZES, SIZES, st.sampled_from(PAIRS))
def test_more_bytes_are_never_faster(cluster, one, other, pair):
    call, algorithm = pair
    small, large = sorted([one, other])
    assert seconds(call, small, cluster, algorithm) <= seconds(call, large, cluster, algorithm)


@given(clusters(), SIZES, st.sampled_from(CALLS))
def test_the_fastest_is_the_fastest(cluster, size, call):
    best = seconds(call, size, cluster, fastest(call, size, cluster))
    for each, algorithm in PAIRS:
        assert each != call or best <= seconds(call, size, cluster, algorithm)


@given(clusters(), SIZES, st.sampled_from(ALGORITHMS))
def test_switches_that_add_send_no_more(cluster, size, algorithm):
    adding = cluster.in_network(inside=True, rail=True)
    pairs = zip(
        loads("all_reduce", size, adding, algorithm),
        loads("all_reduce", size, cluster, algorithm),
        strict=True,
    )
    assert all(new.bytes <= old.bytes * (1 + 1e-12) for new, old in pairs)


def test_a_switch_that_adds_breaks_the_bound():
    """2 S (N-1)/N is the least for messages between ranks alone, not for switches that add."""
    cluster = DGX_H100.in_network(inside=True, rail=True)
    inside, _ = loads("all_reduce", 8e9, cluster, "rails")
    assert inside.bytes == 9e9 < sent("all_reduce", 8_000_000_000, 8) == 14e9
    _, rail = loads("all_reduce", 8e9, replace(cluster, nodes=100), "rails")
    assert (rail.messages, rail.bytes) == (2, 1e9)
    for few in (2, 3):  # NCCL's ring and NVLink SHARP are equally fast on few GPUs
        assert loads("all_reduce", 1e9, cluster.of(few), "rails") == loads(
            "all_reduce", 1e9, DGX_H100.of(few), "rails"
        )


def test_cards_in_shares():
    """Two GPUs on a card: each rail carries both their messages, in every call."""
    cluster = DGX_H100.of(64)
    shared = replace(cluster, gpus_per_card=2)
    for call, algorithm in RINGS:
        inside, rail = loads(call, 1e9, cluster, algorithm)
        more = 1 if algorithm == "flat" else 2  # one ring has a card of each node to itself
        twice = replace(rail, bytes=more * rail.bytes)
        assert loads(call, 1e9, shared, algorithm) == (inside, twice)
    alone = shared.group(range(0, 64, 8))  # a GPU per node: its like use the other half of the card
    assert loads("all_gather", 8.0, alone, "flat")[1].bytes == 14
    # 7/8 of a GPU's payload leaves its node; rails: two GPUs on a card; flat: all 8 through one
    rails, one_card = (loads("all_to_all", 8.0, shared, a)[1] for a in ("rails", "flat"))
    assert (rails.messages, rails.bytes) == (7, 14)
    assert (one_card.messages, one_card.bytes) == (56, 56)
    assert loads("all_to_all", 8.0, alone, "flat")[1].bytes == 14
    assert loads("send", 8.0, shared, "rails")[1].bytes == 16


def test_a_broadcast_by_hand():
    """Scatter in the root's node, on from there on all rails, and gather in each node."""
    cluster = DGX_H100.of(16)
    inside, rail = loads("broadcast", 8.0, cluster, "rails")
    assert (inside.messages, inside.bytes) == (14, 14)
    assert (rail.messages, rail.bytes) == (1, 1)
    inside, rail = loads("broadcast", 8.0, cluster, "flat")
    assert (inside.bytes, rail.bytes) == (8, 8)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_largest_bus_bandwidth(algorithm):
    """No payload reaches more, and a very large payload reaches nearly that."""
    cluster = DGX_H100.of(128)
    limit = largest_bus_bandwidth("all_reduce", cluster, algorithm)
    reached = [
        bus_bandwidth("all_reduce", size, 128, seconds("all_reduce", size, cluster, algorithm))
        for size in (1e6, 1e9, 1e14)
    ]
    assert reached == sorted(reached)
    assert 0.999 * limit < reached[-1] < limit
    with pytest.raises(ValueError, match="one GPU"):
        largest_bus_bandwidth("all_reduce", DGX_H100.of(1))


def busbw(cluster):
    """GB/s of a large all-reduce."""
    time = seconds("all_reduce", HUGE, cluster, fastest("all_reduce", HUGE, cluster))
    return bus_bandwidth("all_reduce", HUGE, cluster.gpus, time) / 1e9


def test_published_one_node():
    """Measured with NCCL's ring; 3 % for what a model of two numbers leaves out."""
    low, high = BUSBW["one_node_ring"]["low"], BUSBW["one_node_ring"]["high"]
    assert 0.97 * low < busbw(DGX_H100) < 1.03 * high


@pytest.mark.parametrize("gpus", [32, 128, 1024])
def test_published_many_nodes(gpus):
    """NVIDIA gives 380 GB/s for 8 rails; the model's rails and trees lie within a tenth of it."""
    cluster = DGX_H100.of(gpus)
    assert busbw(cluster) == pytest.approx(BUSBW["many_nodes_without_sharp"]["busbw"], rel=0.1)
    # far above one card, and above what the levels give in turn
    flat = seconds("all_reduce", HUGE, cluster, "flat")
    assert bus_bandwidth("all_reduce", HUGE, gpus, flat) < 50e9
    in_turn = seconds("all_reduce", HUGE, cluster, pipelined=False)
    assert bus_bandwidth("all_reduce", HUGE, gpus, in_turn) < 250e9


@pytest.mark.parametrize("run", BUSBW["measured_by_users"], ids=lambda run: str(run["gpus"]))
def test_users_reach_less(run):
    """The model is what a well-built network allows: users report 75 to 100 % of it."""
    assert 0.75 < run["busbw"] / busbw(DGX_H100.of(run["gpus"])) < 1


def test_published_nvlink_sharp():
    """The model's limit lies a fifth above what NVIDIA reaches; a ring's limit lies below that."""
    printed = BUSBW["one_node_nvlink_sharp"]
    assert printed["busbw"] == pytest.approx(
        printed["algbw"] * bus_factor("all_reduce", 8), rel=0.01
    )
    limit = busbw(DGX_H100.in_network(inside=True))
    assert busbw(DGX_H100) < 450 < printed["busbw"] < limit < 1.25 * printed["busbw"]


def test_published_nvlink_sharp_with_trees():
    """Between many nodes the cards decide, and the switches gain nothing."""
    printed = BUSBW["many_nodes_nvlink_sharp"]
    cluster = DGX_H100.of(256).in_network(inside=True)
    assert 0.95 * printed["low"] < busbw(cluster) < 1.05 * printed["high"]


@pytest.mark.parametrize("row", FILE["printed_rows"], ids=lambda row: f"{row['ranks']}")
def test_bus_bandwidth_as_printed(row):
    got = bus_bandwidth(row["call"], row["bytes"], row["ranks"], row["us"] * 1e-6)
    assert got / 1e9 == pytest.approx(row["busbw"], rel=1e-3)


def test_what_is_assumed_unless_you_choose():
    cluster = DGX_H100.of(16)
    by_rails = largest_bus_bandwidth("all_reduce", cluster, "rails")
    assert largest_bus_bandwidth("all_reduce", cluster) == by_rails
    assert by_rails > largest_bus_bandwidth("all_reduce", cluster, "flat")
    assert seconds("all_reduce", 1e9, cluster) == seconds("all_reduce", 1e9, cluster, "rails")


def test_bytes_on_a_link_for_each_byte_of_payload():
    factors = {call: bus_factor(call, 4) for call in CALLS}
    assert factors == {
        "all_reduce": 1.5,
        "reduce_scatter": 0.75,
        "all_gather": 0.75,
        "broadcast": 1.0,
        "all_to_all": 0.75,
        "send": 1.0,
    }


@pytest.mark.parametrize("call", CALLS)
def test_one_gpu_sends_nothing(call):
    assert seconds(call, 1e9, DGX_H100.of(1)) == 0


def test_wrong_names():
    with pytest.raises(ValueError, match="'allreduce' is none of all_reduce"):
        loads("allreduce", 1.0, DGX_H100, "rails")
    with pytest.raises(ValueError, match="'ring' is none of flat, rails, tree"):
        seconds("all_reduce", 1.0, DGX_H100, "ring")
    with pytest.raises(ValueError, match="all_to_all has no tree"):
        seconds("all_to_all", 1.0, DGX_H100, "tree")
    with pytest.raises(ValueError, match="none of all_reduce"):
        bus_factor("gather", 8)
    for size in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="0 or more bytes"):
            seconds("all_reduce", size, DGX_H100)
    assert seconds("all_reduce", 0, DGX_H100) > 0  # alpha
