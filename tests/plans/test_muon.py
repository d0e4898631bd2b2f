"""Muon on paper: which matrices, FLOPs, state, the rank of each matrix, messages."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plans.messages import wire
from helpers.plans.muon import (
    hidden_matrix,
    muon_messages,
    newton_schulz_flops,
    section,
    share_out,
    state_numbers,
)

BLOCK = {"norm.weight": (8,), "blocks.0.q": (8, 8), "blocks.0.up": (32, 8), "blocks.0.b": (32,)}


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("blocks.0.mlp.up.weight", (32, 12), True),
        ("encoder.0.weight", (3, 4), True),
        ("blocks.0.head.weight", (3, 4), True),  # not the model's head
        ("head.weight", (33, 12), False),
        ("embedding.weight", (33, 12), False),
        ("positions.weight", (8, 12), False),
        ("norm.weight", (12,), False),
        ("blocks.0.mixer.conv.weight", (12, 1, 4), False),
        ("blocks.0.mixer.A_log", (24, 3), False),
    ],
)
def test_hidden_matrices_alone(name, shape, wanted):
    assert hidden_matrix(name, shape) == wanted


def test_flops_of_a_square_of_a_tall_and_of_a_wide_matrix():
    assert newton_schulz_flops((3, 3), 1) == 6 * 27
    assert newton_schulz_flops((2, 5)) == newton_schulz_flops((5, 2)) == 5 * (4 * 4 * 5 + 2 * 8)


@pytest.mark.parametrize(("m", "tokens", "percent"), [(768, 524288, 0.7), (16384, 16e6, 0.5)])
def test_the_published_overheads(m, tokens, percent):
    """Jordan et al. 2024, "Runtime analysis": NanoGPT's 0.7 %, Llama 405B's 0.5 %: 5 m / B."""
    training = 6 * m * m * tokens  # forward and backward of a square matrix
    assert round(100 * newton_schulz_flops((m, m)) / training, 1) == percent
    wide = newton_schulz_flops((m, 4 * m)) / (6 * m * 4 * m * tokens)
    assert wide < 5 * m / tokens


def test_state_is_half_of_adamw_s_in_matrices():
    matrices, vectors = 8 * 8 + 32 * 8, 8 + 32
    assert state_numbers(BLOCK) == matrices + 2 * vectors
    assert state_numbers(BLOCK | {"head.weight": (9, 8)}) == matrices + 2 * (vectors + 72)
    assert state_numbers(BLOCK, muon=False) == 2 * (matrices + vectors)


SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=7)


@given(shapes=SIZES, ranks=st.integers(1, 3))
def test_greedy_is_at_most_a_third_above_the_best(shapes, ranks):
    named = {f"blocks.{i}": shape for i, shape in enumerate(shapes)}
    loads = [0.0] * ranks
    found = share_out(named, ranks, loads)
    costs = {name: newton_schulz_flops(shape) for name, shape in named.items()}
    made = [sum(c for n, c in costs.items() if found[n] == r) for r in range(ranks)]
    assert made == loads
    best = min(
        max(sum(c for c, at in zip(costs.values(), places, strict=True) if at == r)
            for r in range(ranks))
        for places in itertools.product(range(ranks), repeat=len(costs))
    )  # fmt: skip
    assert max(made) <= best * (4 / 3 - 1 / (3 * ranks)) + 1e-9


def test_loads_go_on_and_vectors_fill_the_smallest_section():
    loads = [0.0, 0.0]
    one = share_out({"blocks.0.q": (4, 4), "blocks.0.b": (9,)}, 2, loads)
    two = share_out({"blocks.1.q": (4, 4)}, 2, loads)
    assert (one, two) == ({"blocks.0.q": 0, "blocks.0.b": 1}, {"blocks.1.q": 1})
    assert loads == [newton_schulz_flops((4, 4))] * 2
    assert section({"a": (4, 4), "b": (9,), "c": (2, 2)}, {"a": 0, "b": 1, "c": 1}) == 16
    vectors = {"blocks.0.q": (4, 4), "blocks.0.b": (30,), "blocks.0.c": (9,)}
    assert share_out(vectors, 2, [0.0, 0.0])["blocks.0.c"] == 0  # its numbers are fewer: 16, not 30
    assert share_out({"a": (1,), "b": (9,), "c": (10,)}, 2, [0.0, 0.0]) == {"c": 0, "b": 1, "a": 1}


def test_messages_of_both_stages():
    units = [{"embedding.weight": (9, 8)}, BLOCK]
    params, matrices, largest = 72 + 360, 320, 256
    plain, sent = (sum(wire([m]).values()) for m in muon_messages(units, 2, 0))
    assert plain == 2 * params * 4 / 2
    assert sent == 2 * largest * 4 / 2 > matrices * 4 / 2  # padded to the larger section
    sharded = sum(wire(muon_messages(units, 2, 1, number_bytes=2)).values())
    assert sharded == 2 * (72 + 2 * largest) * 2 / 2
    (odd, _) = muon_messages([{"embedding.weight": (5, 5)}], 2, 1)
    assert odd.payload == 26 * 4  # padded
    after = [{"blocks.0.q": (4, 4)}, {f"blocks.1.{name}": (3, 3) for name in "qkv"}]
    rows = [m.payload for m in muon_messages(after, 2, 1) if m.call == "all_gather"]
    assert rows == [2 * 16 * 4, 2 * 27 * 4]  # rank 1 has all three: rank 0 has the larger one
    with pytest.raises(ValueError, match="whole matrices"):
        muon_messages(units, 2, 2)
