"""Placements of experts: the published example, exactly; what any placement must have."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.plans.expert_placement import Placement, pack, place, replicate

# the README of https://github.com/deepseek-ai/EPLB: two layers of 12 experts
TOKENS = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
PRINTED = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


@pytest.mark.parametrize("layer", [0, 1])
def test_the_published_example(layer):
    found = place(TOKENS[layer], slots=16, gpus=8, nodes=2, groups=4)
    assert [expert for gpu in found.experts for expert in gpu] == PRINTED[layer]
    assert round(found.imbalance(TOKENS[layer]), 3) == (1.208, 1.242)[layer]
    plain = Placement(experts=tuple((2 * g, 2 * g + 1) for g in range(6)))
    assert round(plain.imbalance(TOKENS[layer]), 3) == (1.562, 1.785)[layer]


@given(
    per_group=st.integers(1, 3),
    groups=st.sampled_from([1, 2, 4, 6]),
    nodes=st.sampled_from([1, 2, 3]),
    per_node=st.integers(1, 3),
    per_gpu=st.integers(1, 6),
    data=st.data(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_placement(per_group, groups, nodes, per_node, per_gpu, data):
    experts, gpus = per_group * groups, nodes * per_node
    slots = gpus * per_gpu
    assume(slots >= experts)
    tokens = data.draw(st.lists(st.integers(0, 50), min_size=experts, max_size=experts))
    found = place(tokens, slots=slots, gpus=gpus, nodes=nodes, groups=groups)
    assert [len(own) for own in found.experts] == [per_gpu] * gpus
    assert set(found.copies) == set(range(experts))
    assert sum(found.loads(tokens)) == pytest.approx(sum(tokens))
    assert found.imbalance(tokens) >= 1 - 1e-12
    if groups % nodes == 0:  # a group is on one node
        node_of = {}
        for gpu, own in enumerate(found.experts):
            for expert in own:
                group = expert // per_group
                assert node_of.setdefault(group, gpu // per_node) == gpu // per_node
    # no copy would have helped more elsewhere: moving the last copy cannot lower the hottest
    here = [t / found.copies[e] for e, t in enumerate(tokens)]
    if nodes == 1:
        for expert, count in found.copies.items():
            if count > 1:
                assert tokens[expert] / (count - 1) >= max(here) - 1e-9


def test_copies_go_to_the_hottest_and_packs_fill_up():
    assert replicate([8, 3, 5], 6) == [0, 1, 2, 0, 2, 0]
    assert replicate([1, 1], 2) == [0, 1]
    assert pack([5, 4, 3, 2, 1, 0], 2) == [[0, 3, 4], [1, 2, 5]]  # the heavier one is full
    assert pack([1, 9], 2) == [[0], [1]]
    assert pack([10, 1, 1, 1], 2) == [[0, 3], [1, 2]]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"slots": 11, "gpus": 1}, "12 experts do not fit into 11 slots"),
        ({"slots": 16, "gpus": 3}, "16 slots do not divide over 3 GPUs"),
        ({"slots": 15, "gpus": 5, "nodes": 2, "groups": 2}, "5 GPUs do not divide over 2 nodes"),
        ({"slots": 16, "gpus": 4, "groups": 5}, "12 experts do not divide over 5 groups"),
    ],
)
def test_numbers_that_do_not_divide(sizes, message):
    with pytest.raises(ValueError, match=message):
        place(TOKENS[0], **sizes)
