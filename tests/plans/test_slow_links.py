"""Bytes between nodes against the paper and by hand; the break-even bandwidth by hand."""

import json
import math
from pathlib import Path

import pytest

from helpers.plans.messages import wire
from helpers.plans.slow_links import (
    break_even,
    coded_bytes,
    node_messages,
    quantised_numbers,
    quantiser_seconds,
    speed_up,
    step_seconds,
)

PUBLISHED = json.loads(Path(__file__).with_name("published_zeropp.json").read_text())
VOLUME = PUBLISHED["volume_table_in_units_of_M"]
QWZ, HPZ = {"weights": (8, 256)}, {"secondary": True}
QGZ = {"gradients": ((4, 256), (4, 256))}
SCALES = 4 / 256 / 2  # of M, for each message with 16-bit numbers and blocks of 256


def between_nodes(messages, local):
    """Bytes that all ranks of a node together send to other nodes in a step."""
    return local * wire(messages).get("node", 0.0)


@pytest.mark.parametrize("nodes", [2, 3, 48])
@pytest.mark.parametrize("local", [1, 8])
@pytest.mark.parametrize(
    ("ways", "times"),
    [
        ({}, VOLUME["ZeRO3"]["total"]),
        (QWZ, 0.5 + SCALES + 0.5 + SCALES + 1),
        (HPZ, 1 + 0 + 1),
        (QGZ, 1 + 1 + VOLUME["ZeROpp"]["grad_reduce_scatter"] + SCALES),
        (QWZ | HPZ | QGZ, VOLUME["ZeROpp"]["total"] + 2 * SCALES),
    ],
)
def test_the_published_volume_between_nodes(nodes, local, ways, times):
    params = 256 * nodes * local * 10
    sent = between_nodes(node_messages([params], nodes, local, **ways), local)
    assert sent == pytest.approx(times * 2 * params * (nodes - 1) / nodes, rel=1e-12)


def test_the_scales_cost_two_percent_of_the_published_volume():
    params = 256 * 384 * 1000
    sent = between_nodes(node_messages([params], 24, 16, **QWZ, **HPZ, **QGZ), 16)
    exact = between_nodes(node_messages([params], 24, 16), 16)
    assert exact / sent == pytest.approx(3 / 0.765625)


@pytest.mark.parametrize(
    ("numbers", "form", "nbytes"),
    [(7, None, 14), (7, (8, 4), 8 + 8), (7, (4, 4), 8 + 4), (9, (4, 4), 12 + 8), (8, (8, 8), 12)],
)
def test_a_row_of_numbers_by_hand(numbers, form, nbytes):
    assert coded_bytes(numbers, form, 2) == nbytes


def test_two_rows_by_hand():
    """Shards of 5 and 2 numbers on 2 nodes of 3 ranks. In int8 with blocks of 4: 16 and 8 bytes."""
    exact = node_messages([30, 12], 2, 3, number_bytes=4, micro_batches=2)
    row = (2 * 2 + 2) * 4 * (5 + 2)  # 4 gathers and 2 sums of 4 bytes a number, to 1 other node
    assert wire(exact) == {"node": row, "local": row * 2 * 2}  # 2 nodes' numbers, 2 other ranks
    ways = {"weights": (8, 4), "secondary": True, "gradients": ((8, 4), (4, 4))}
    found = node_messages([30, 12], 2, 3, number_bytes=4, micro_batches=2, **ways)
    assert wire(found, "what") == {
        "parameters": 24 + 4 * 24,
        "second shard": 3 * 4 * 7 * 4,  # 3 gathers, 2 other ranks with 2 shards each
        "gradients": 2 * (4 * 24 + (12 + 8)),  # in int4, 8 + 4 and 4 + 4 bytes
    }
    assert node_messages([30], 1, 1) == []
    assert wire(node_messages([30], 1, 3, **HPZ)).keys() == {"local"}
    assert between_nodes(node_messages([30], 1, 3), 3) == 0
    with pytest.raises(ValueError, match="31 numbers are not whole shards for 6 ranks"):
        node_messages([31], 2, 3)


def test_the_quantiser_s_numbers_by_hand():
    """P = 120 on 2 nodes of 3 ranks: shards of 20, node sums of 40."""
    sizes = {"params": 120, "nodes": 2, "local": 3}
    assert quantised_numbers(**sizes) == {"encode": 20 + 160, "decode": 120 + 160}
    found = quantised_numbers(**sizes, secondary=False, gradients=False, micro_batches=2)
    assert found == {"encode": 80, "decode": 480}
    found = quantised_numbers(**sizes, weights=False, micro_batches=2)
    assert found == {"encode": 320, "decode": 320}
    assert quantiser_seconds({"encode": 180, "decode": 280}, {"encode": 90, "decode": 140}) == 4


def test_the_break_even_bandwidth_by_hand():
    """1200 numbers of 2 bytes on 2 nodes of 1 rank. A rank sends half of each payload.

    Exact: 3 · 1200 = 3600 bytes. All three in blocks of 300: 600 + 4 · 2 bytes for the weights and
    300 + 4 · 2 for the gradients, 916 together. With a quantiser of 2 s: 2684 / 2 bytes a second.
    """
    exact = node_messages([1200], 2, 1)
    ways = {"weights": (8, 300), "secondary": True, "gradients": ((4, 300), (4, 300))}
    sent = node_messages([1200], 2, 1, **ways)
    assert (wire(exact), wire(sent)) == ({"node": 3600}, {"node": 916})
    even = break_even(exact, sent, quantiser=2)
    assert even == 1342
    given = {"quantiser": 2, "other": 5}
    assert speed_up(exact, sent, {"node": even}, **given) == pytest.approx(1)
    assert speed_up(exact, sent, {"node": 100}, **given) == pytest.approx(41 / (5 + 9.16 + 2))
    assert (
        speed_up(exact, sent, {"node": 3600}, **given)
        < 1
        < speed_up(exact, sent, {"node": 1000}, **given)
    )
    assert step_seconds(exact, {"node": 1800}, other=1) == 3
    assert step_seconds(exact, {"local": 1}) == 0
    assert break_even(exact, sent, quantiser=0) == math.inf


def test_the_inside_of_the_node_counts_too():
    """Shards of 300 numbers on 2 nodes of 2 ranks: 600 bytes, or 8 + 152 in int4.

    A rank sends a shard to the other node and two to its neighbour. So int4 saves 440 bytes
    between the nodes, and 880 inside.
    """
    exact, sent = node_messages([1200], 2, 2), node_messages([1200], 2, 2, **QGZ)
    assert {axis: wire(exact)[axis] - wire(sent)[axis] for axis in ("node", "local")} == {
        "node": 440,
        "local": 880,
    }
    assert break_even(exact, sent, quantiser=3, inside=880) == pytest.approx(440 / 2)
    assert break_even(exact, sent, quantiser=1, inside=880) == math.inf
    assert break_even(exact, sent, quantiser=1) == 440
