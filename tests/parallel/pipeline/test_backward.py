"""A backward in two parts equals the whole, and computes nothing twice."""

import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.flop_counter import FlopCounterMode

from helpers.models.gpt import GPTConfig, build
from helpers.parallel.pipeline.backward import TwoParts

SIZES = {"vocab": 33, "context": 12, "width": 24, "layers": 2, "heads": 4}
CONFIGS = {
    "Llama": GPTConfig(**SIZES, kv_heads=2),
    "GPT-2": GPTConfig(
        **SIZES, norm="layer", positions="learned", mlp="gelu", bias=True, dropout=0.2
    ),
    "explicit": GPTConfig(**SIZES, attention="explicit", recompute="selective"),
}


def stage_and_input(config):
    stage = build(config, dtype=torch.float64, first=False)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 12, 24, generator=generator, dtype=torch.float64, requires_grad=True)
    return stage, x, torch.randn(3, 12, 33, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_both_parts_equal_the_whole_backward(config):
    stage, x, gradient = stage_and_input(config)
    stage(x).backward(gradient)
    both = TwoParts(get_gradient_edge(stage(x)), x, stage.parameters())
    of_x, early = both.first(gradient)
    assert not early
    assert torch.equal(of_x, x.grad)
    found = dict(both.second())
    assert found.keys() == set(stage.parameters())
    for p, own in found.items():
        assert torch.equal(own, p.grad)


def test_no_product_is_computed_twice():
    """The two parts' FLOPs together are the whole backward's; each part has about half."""
    stage, x, gradient = stage_and_input(CONFIGS["Llama"])

    def flops(run):
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    y = stage(x)
    whole = flops(lambda: y.backward(gradient))
    both = TwoParts(get_gradient_edge(stage(x)), x, stage.parameters())
    first, second = flops(lambda: both.first(gradient)), flops(both.second)
    assert first + second == whole
    assert 0.3 * whole < second < 0.6 * whole


def test_a_matrix_used_twice_belongs_to_the_first_part():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    x = torch.randn(2, 4, requires_grad=True)

    def run():
        return first(second(first(x)).relu()).sum()

    run().backward()
    both = TwoParts(get_gradient_edge(run()), x, [first.weight, second.weight])
    of_x, early = both.first(torch.ones(()))
    torch.testing.assert_close(of_x, x.grad)
    assert [p is first.weight for p, _ in early] == [True]
    torch.testing.assert_close(early[0][1], first.weight.grad)
    ((p, own),) = both.second()
    assert p is second.weight
    torch.testing.assert_close(own, p.grad)


def test_a_frozen_parameter_gets_nothing():
    stage, x, gradient = stage_and_input(CONFIGS["Llama"])
    frozen = stage.blocks["0"].mlp.up.weight.requires_grad_(False)
    trained = [p for p in stage.parameters() if p.requires_grad]
    both = TwoParts(get_gradient_edge(stage(x)), x, trained)
    both.first(gradient)
    assert frozen not in dict(both.second())


class Kept:
    """A tensor that autograd saved, so that a weak reference shows whether it still does."""

    def __init__(self, tensor):
        self.tensor = tensor


def test_what_only_the_first_part_needs_is_freed_after_it():
    """The loss saves the logits' softmax, which is above every junction."""
    stage, x, _ = stage_and_input(CONFIGS["Llama"])
    saved = []

    def pack(tensor):
        kept = Kept(tensor.detach())  # an output with its graph would keep itself alive
        saved.append(weakref.ref(kept))
        return kept

    logits = stage(x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        loss, _ = stage.criterion(logits, torch.zeros(3, 12, dtype=torch.int64))
    both = TwoParts(get_gradient_edge(loss), x, stage.parameters())
    del loss, logits
    assert any(kept() for kept in saved)
    both.first(torch.ones((), dtype=torch.float64))
    assert not any(kept() for kept in saved)
