"""The cut into stages is the best there is: every other cut is tried."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.models.counts import flops_per_token
from helpers.models.gpt import GPTConfig
from helpers.parallel.pipeline.split import layer_costs, split, stage_costs


def every_cut(layers, stages):
    for stops in combinations(range(1, layers), stages - 1):
        yield [range(a, b) for a, b in pairwise((0, *stops, layers))]


NUMBERS = st.integers(0, 9)  # whole numbers: their sums are exact


@given(
    costs=st.lists(NUMBERS, min_size=1, max_size=8),
    stages=st.integers(1, 5),
    first=NUMBERS,
    last=NUMBERS,
)
def test_no_cut_is_better(costs, stages, first, last):
    if len(costs) < stages:
        with pytest.raises(ValueError, match=f"{len(costs)} layers cannot fill {stages} stages"):
            split(costs, stages)
        return

    def quality(shares):
        sums = stage_costs(costs, shares, first, last)
        return max(sums), sum(one * one for one in sums)

    found = split(costs, stages, first=first, last=last)
    assert quality(found) == min(map(quality, every_cut(len(costs), stages)))
    assert [number for share in found for number in share] == list(range(len(costs)))
    assert all(found)  # each stage has a layer


def test_a_heavy_head_takes_layers_from_the_last_stage():
    assert split([1, 1, 1, 1], 2) == [range(2), range(2, 4)]
    assert split([1, 1, 1, 1], 2, last=2) == [range(3), range(3, 4)]
    assert split([1, 1, 1, 1], 2, first=2) == [range(1), range(1, 4)]


@pytest.mark.parametrize("costs", [[4, 9, 6, 7], [2, 7, 8, 1], [7, 9, 2, 5, 3, 9]], ids=str)
def test_a_rounding_error_moves_no_layer(costs):
    """0.6 + 0.7 is a little less than 0.4 + 0.9: the more even cut counts as no slower."""
    assert split([cost / 10 for cost in costs], 3) == split(costs, 3)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_costs_are_the_models(recompute):
    config = GPTConfig(width=32, layers=5, vocab=100, recompute=recompute)
    first, blocks, last = layer_costs(config, 48)
    again = flops_per_token(config, 48, part="recomputed")
    assert sum(blocks) + last == flops_per_token(config, 48) + again
    assert last == 3 * 2 * 32 * 100  # the head, forward and backward
    assert len(set(blocks)) == 1
    assert first == 3 * 4 * 32  # Kaplan et al.: 4 D forward, and twice as much backward


def test_each_block_costs_what_its_mixer_does():
    mixers = ("attention", "latent", "latent", "attention")
    config = GPTConfig(vocab=100, context=64, width=32, layers=4, positions="learned", mixer=mixers)
    _, blocks, last = layer_costs(config, 48)
    assert sum(blocks) + last == flops_per_token(config, 48)
    assert blocks[0] == blocks[3] != blocks[1] == blocks[2]
