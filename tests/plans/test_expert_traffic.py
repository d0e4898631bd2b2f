"""Bytes of a mixture: by hand, by DeepSeek-V3's numbers, and by counting random choices."""

import random

import pytest

from helpers.plans.expert_traffic import expert_messages, nodes_of_token, rows_by_link
from helpers.plans.messages import wire

V3 = {"experts": 256, "chosen": 8, "nodes": 8}


def test_rows_there_and_back_forward_and_backward():
    sizes = {"tokens": 12, "width": 5, "count": 8, "chosen": 2, "ranks": 4, "number_bytes": 2}
    rows, counts = 12 * 2 * 5 * 2 * 3 / 4, 8 * 8 * 3 / 4
    for recompute, forwards in (("none", 1), ("selective", 1), ("full", 2)):
        sent = wire(expert_messages(**sizes, recompute=recompute, times=3), "what")
        assert sent == {"counts": 3 * forwards * counts, "rows": 3 * 2 * (forwards + 1) * rows}
    assert expert_messages(**sizes | {"ranks": 1}) == []


def test_the_nodes_of_a_token():
    """One expert is on one node; with as many experts as there are, all nodes are used."""
    assert nodes_of_token(8, 1, 4) == nodes_of_token(8, 1, 4, 2) == 1
    assert nodes_of_token(8, 8, 4) == 4
    assert nodes_of_token(8, 2, 2) == pytest.approx(2 * (1 - 6 / 28))  # binom(4, 2) / binom(8, 2)
    assert nodes_of_token(**V3, limit=1) == 1
    every, limited = nodes_of_token(**V3), nodes_of_token(**V3, limit=4)
    assert 3 < limited < 4 < every < 8
    for wrong in ({"nodes": 3}, {"limit": 0}, {"limit": 9}, {"chosen": 33, "limit": 1}):
        with pytest.raises(ValueError, match="the nodes must divide"):
            nodes_of_token(**V3 | wrong)


def routed(rng, limit):
    nodes = rng.sample(range(V3["nodes"]), limit)
    return rng.sample([32 * node + i for node in nodes for i in range(32)], V3["chosen"])


@pytest.mark.parametrize("limit", [8, 4, 2])
def test_the_closed_form_is_the_mean_of_random_choices(limit):
    rng, tokens, local = random.Random(limit), 4000, 8
    chosen = [routed(rng, limit) for _ in range(tokens)]
    found = rows_by_link(chosen, 19, experts=256, nodes=8, local=local)
    mean = {way: {link: n / tokens for link, n in links.items()} for way, links in found.items()}
    nodes = nodes_of_token(**V3, limit=limit)
    assert mean["once"]["between"] == pytest.approx(nodes * 7 / 8, rel=0.03)
    assert mean["once"]["inside"] == pytest.approx(8 * 7 / 8, rel=0.03)
    assert mean["each"]["between"] == pytest.approx(8 * 7 / 8, rel=0.03)  # whatever the limit
    assert mean["each"]["inside"] == pytest.approx(8 * 7 / 64, rel=0.1)


def test_rows_by_hand():
    """Four experts on two nodes of two ranks; rank 1 has expert 1."""
    found = rows_by_link([(0, 1), (2, 3), (1, 3)], 1, experts=4, nodes=2, local=2)
    assert found["each"] == {"inside": 1, "between": 3}
    assert found["once"] == {"inside": 2, "between": 2}
