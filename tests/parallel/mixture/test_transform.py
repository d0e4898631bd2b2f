"""What the transform refuses, how it cuts, and what follows from a layout.

tests/parallel/test_strategies.py holds it beside one process, under every owner and engine.
"""

from dataclasses import replace

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings
from helpers.parallel.mixture.transform import cut_experts, expert_parallel, shares_of
from helpers.parallel.transform import plain
from helpers.state.placing import Seat

DENSE = GPTConfig(vocab=8, context=4, width=8, layers=2, heads=2)
CONFIG = replace(DENSE, experts=ExpertSettings(count=5, hidden=6, after=1))


@pytest.mark.parametrize(
    ("layout", "axes", "shares"),
    [
        ({"ep": 3}, ("ep",), [2, 2, 1]),
        ({"ep": 5}, ("ep",), [1] * 5),
        ({"dp": 2, "ep": 2}, ("ep",), [3, 2]),
        ({"cp": 2, "ep": 2}, ("cp", "ep"), [2, 1, 1, 1]),
        ({"ep": 2, "tp": 2, "dp": 2}, ("ep", "dp"), [2, 1, 1, 1]),
    ],
)
def test_experts_are_cut_in_the_order_of_ranks(layout, axes, shares):
    layout, start = Layout(**layout), 0
    for rank in layout.group_of(layout.world_size - 1, *axes):
        seat = Seat(layout, rank)
        assert shares_of(5, seat, axes) == shares
        model, parts = plain(CONFIG, 0, seat, torch.float32)
        model.blocks["1"].mlp.experts.up.requires_grad_(False)
        found = cut_experts(model, parts, seat, axes)
        own = shares[layout.group_of(rank, *axes).index(rank)]
        for name in ("gate", "up", "down"):
            part = found[f"blocks.1.mlp.experts.{name}"]
            assert part.ranges(0) == ((start, start + own),)
            own_part = getattr(model.blocks["1"].mlp.experts, name)
            assert (own_part.shape, own_part.requires_grad) == (part.local_shape, name != "up")
            assert part.holders == tuple(sorted(
                other for other in range(layout.world_size)
                if all(layout.coordinates(other)[a] == layout.coordinates(rank)[a] for a in axes)
            ))  # fmt: skip
        start += own
    assert found["blocks.0.mlp.gate.weight"] == parts["blocks.0.mlp.gate.weight"]


@pytest.mark.parametrize(
    ("config", "layout", "options", "words"),
    [
        (DENSE, {"ep": 2}, {}, "the model has no experts to cut"),
        (CONFIG, {"ep": 6}, {}, "5 experts for 6 ranks"),
        (CONFIG, {"tp": 2}, {"axes": ("tp",)}, "ranks along tp have the same tokens"),
    ],
)
def test_what_is_refused(config, layout, options, words):
    with pytest.raises(ValueError, match=words):
        expert_parallel(config, 0, Seat(Layout(**layout), 0), torch.float32, **options)


@pytest.mark.parametrize("layout", [{"ep": 1}, {"dp": 2}])
def test_an_axis_of_one_rank_changes_nothing(layout):
    placed = expert_parallel(DENSE, 0, Seat(Layout(**layout), 0), torch.float32)
    assert placed.sums == tuple(layout)
    assert placed.parts == plain(DENSE, 0, Seat(Layout(**layout), 0), torch.float32).parts
