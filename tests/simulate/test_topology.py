"""Clusters: sizes, groups of ranks, and links as NCCL's source and maintainers have them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.comm.mesh import Layout
from helpers.simulate.hardware import A100, H100
from helpers.simulate.topology import DGX_2H, DGX_A100, DGX_H100, Link

FILE = json.loads(Path(__file__).with_name("published_clusters.json").read_text())


@pytest.mark.parametrize(
    ("cluster", "name"), [(DGX_2H, "V100"), (DGX_A100, "A100"), (DGX_H100, "H100")]
)
def test_links_as_published(cluster, name):
    printed = FILE["links"][name]
    assert cluster.inside.bytes_per_second == pytest.approx(
        printed["links"] * printed["gb_per_s"] * 1e9
    )
    assert cluster.inside.alpha == pytest.approx(FILE["latency"]["nvlink_us"]["Simple"] * 1e-6)
    assert cluster.rail.alpha == pytest.approx(FILE["latency"]["network_us"]["Simple"] * 1e-6)
    assert cluster.in_network() == cluster


def test_cards_as_published():
    cards = FILE["cards"]
    for cluster, gpus in ((DGX_2H, 16), (DGX_A100, 8), (DGX_H100, 8)):
        assert cluster.gpus_per_node == gpus
        assert cluster.gpus_per_node // cluster.gpus_per_card == 8  # cards in each machine
    assert DGX_A100.rail.bytes_per_second == cards["200 Gbit/s"]["gb_per_s"] * 1e9
    assert DGX_2H.rail.bytes_per_second == cards["200 Gbit/s"]["gb_per_s"] * 1e9 / 2  # 100 Gbit/s
    new = cards["400 Gbit/s"]
    h100 = DGX_H100.rail.bytes_per_second / 1e9
    assert new["low_gb_per_s"] <= h100 <= new["high_gb_per_s"]


@pytest.mark.parametrize(("cluster", "chip"), [(DGX_A100, A100), (DGX_H100, H100)])
def test_reached_lies_below_promised(cluster, chip):
    """Protocol headers take their part: 4 % of a card, a fifth of NVLink."""
    inside = cluster.inside.bytes_per_second / chip.link_bytes_per_second_each_way
    rail = cluster.rail.bytes_per_second / chip.network_bytes_per_second_each_way
    assert 0.75 < inside < 0.85
    assert 0.95 < rail < 1


def test_as_many_machines_as_needed():
    assert DGX_H100.gpus == 8
    big = DGX_H100.of(1024)
    assert (big.nodes, big.gpus_per_node, big.gpus) == (128, 8, 1024)
    assert big.of(8) == DGX_H100
    part = big.of(3)
    assert (part.nodes, part.gpus_per_node) == (1, 3)
    with pytest.raises(ValueError, match="12 GPUs do not fill nodes of 8"):
        DGX_H100.of(12)


def test_groups_of_a_layout():
    cluster, layout = DGX_H100.of(64), Layout(dp=4, pp=2, tp=8)
    inside = cluster.group(layout.groups("tp")[3])
    assert (inside.nodes, inside.gpus_per_node) == (1, 8)
    for axes, nodes in (("dp", 4), ("pp", 2)):
        striding = cluster.group(layout.groups(axes)[5])
        assert (striding.nodes, striding.gpus_per_node) == (nodes, 1)
    assert cluster.group(range(64)) == cluster
    half = cluster.group(Layout(dp=16, tp=4).groups("dp")[0])  # ranks 0, 4, 8, 12, …
    assert (half.nodes, half.gpus_per_node) == (8, 2)
    assert (half.rail, half.inside) == (cluster.rail, cluster.inside)


@pytest.mark.parametrize("ranks", [[], [0, 64], [-1, 0], [3, 3]])
def test_no_such_group(ranks):
    named = {(0, 64): "64", (-1, 0): "-1"}.get(tuple(ranks), ", ".join(map(str, ranks)))
    with pytest.raises(ValueError, match=f"different ranks of 0 to 63, not '{named}'"):
        DGX_H100.of(64).group(ranks)


def test_a_group_that_lies_unevenly():
    with pytest.raises(ValueError, match=r"unequal numbers.*1 to 2"):
        DGX_H100.of(16).group([0, 1, 8])


def test_switches_that_add():
    both = DGX_H100.in_network(inside=True, rail=True)
    assert (both.inside.reduces, both.rail.reduces) == (True, True)
    between = DGX_H100.in_network(rail=True)
    assert (between.inside.reduces, between.rail.reduces) == (False, True)
    assert both.in_network() == DGX_H100
    assert both.inside.alpha == DGX_H100.inside.alpha


@pytest.mark.parametrize("count", [0, -1, 2.0, True, None])
@pytest.mark.parametrize("name", ["nodes", "gpus_per_node", "gpus_per_card"])
def test_senseless_counts(name, count):
    with pytest.raises(ValueError, match=name):
        replace(DGX_H100, **{name: count})


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha", -1e-6), ("alpha", float("inf"))]
    + [("bytes_per_second", each) for each in (0, -1e9, float("nan"))],
)
def test_senseless_links(name, value):
    with pytest.raises(ValueError, match=name):
        replace(DGX_H100.inside, **{name: value})


def test_a_link_may_cost_its_latency_alone():
    free = Link(alpha=0, bytes_per_second=float("inf"))
    assert (free.alpha, free.bytes_per_second, free.reduces) == (0, float("inf"), False)
