"""A backward in two parts equals the whole, and computes nothing twice."""

import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.flop_counter import FlopCounterMode

from helpers.models.gpt import GPTConfig, build
from helpers.parallel.pipeline.backward import Share, TwoParts, second
from helpers.parallel.tensor.layers import RowParallel
from helpers.parallel.tensor.regions import Whole
from helpers.precision.fp8 import EmulatedLinear

SIZES = {"vocab": 33, "context": 12, "width": 24, "layers": 2, "heads": 4}
CONFIGS = {
    "Llama": GPTConfig(**SIZES, kv_heads=2),
    "GPT-2": GPTConfig(
        **SIZES, norm="layer", positions="learned", mlp="gelu", bias=True, dropout=0.2
    ),
    "explicit": GPTConfig(**SIZES, attention="explicit", recompute="selective"),
}


def stage_and_input(config, **stage):
    stage = build(config, dtype=torch.float64, **({"first": False} | stage))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 12, 24, generator=generator, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(3, 12, 33, generator=generator, dtype=torch.float64)
    return stage, x, gradient if stage.last else gradient[..., :24]


def both_parts(stage, x, gradient, times=1):
    """Gradients of the input and of the parameters; and the weights that wait."""
    both, later = TwoParts(stage), []
    for _ in range(times):
        of_x, kept = both.first(get_gradient_edge(stage(x)), x, gradient)
        later = [share.parameter for share in kept if share.x is not None]
        wanted, done = {share.parameter for share in kept}, {}
        for p in second(kept):
            assert p not in done
            done[p] = p.grad.clone()
        assert done.keys() == wanted
        assert all(torch.equal(p.grad, complete) for p, complete in done.items())
    return of_x, {name: p.grad for name, p in stage.named_parameters()}, later


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_both_parts_equal_the_whole_backward(config):
    """Two backwards are added. The sums are in another order: 1e-12 in float64."""
    stage, x, gradient = stage_and_input(config)
    for _ in range(2):
        (of_x,) = torch.autograd.grad(stage(x), x, gradient, retain_graph=True)
        stage(x).backward(gradient)
    whole = {name: p.grad for name, p in stage.named_parameters()}
    stage.zero_grad()
    got, parts, later = both_parts(stage, x, gradient, times=2)
    torch.testing.assert_close(got, of_x, rtol=0, atol=1e-12)
    assert parts.keys() == whole.keys()
    for name, own in parts.items():
        assert not own.requires_grad
        torch.testing.assert_close(own, whole[name], rtol=0, atol=1e-12)
    matrices = {p for p in stage.parameters() if p.dim() == 2}
    assert set(later) == matrices
    assert len(later) == len(matrices)


def test_no_product_is_computed_twice():
    """The two parts' FLOPs together are the whole backward's; each part has about half."""
    stage, x, gradient = stage_and_input(CONFIGS["Llama"])

    def flops(run):
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    y = stage(x)
    whole = flops(lambda: y.backward(gradient))
    stage.zero_grad()
    both, kept = TwoParts(stage), []
    root = get_gradient_edge(stage(x))
    first = flops(lambda: kept.extend(both.first(root, x, gradient)[1]))
    later = flops(lambda: list(second(kept)))
    assert first + later == whole
    assert 0.3 * whole < later < 0.6 * whole


def test_the_split_tensor_parallel_layer_is_divided_too():
    """Without its hand-written backward: one rank has the whole layer, so no message is needed."""
    stage, x, gradient = stage_and_input(CONFIGS["Llama"], last=False)
    stage(x).backward(gradient)
    wanted = {name: p.grad for name, p in stage.named_parameters()}
    stage.zero_grad()
    alone = Whole(SimpleNamespace(size=1))
    for block in stage.blocks.values():
        block.mlp.down = RowParallel(block.mlp.down, alone, overlap=False)
        block.attention.out = RowParallel(block.attention.out, alone, overlap=True)
    _, parts, later = both_parts(stage, x, gradient)
    for name, own in parts.items():
        torch.testing.assert_close(own, wanted[name], rtol=0, atol=1e-12)
    assert any(p is stage.blocks["0"].mlp.down.weight for p in later)
    assert not any(p is stage.blocks["0"].attention.out.weight for p in later)


class Shared(nn.Module):
    """Two linear modules have one weight. A linear module and a table have another."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.second.weight = self.first.weight
        self.table = nn.Embedding(4, 4)
        self.table.weight = self.last.weight

    def forward(self, x):
        y = self.second(self.first(x).relu())
        return (self.last(y) + self.table.weight.sum(0)).sum()


def test_a_weight_that_is_used_twice():
    """In two products, or in a product and otherwise: it is reported when all is added."""
    module, x = Shared(), torch.randn(2, 4, requires_grad=True)
    module(x).backward()
    whole = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad()
    of_x, parts, later = both_parts(module, x, torch.ones(()))
    torch.testing.assert_close(of_x, x.grad)
    for name, own in parts.items():
        torch.testing.assert_close(own, whole[name])
    assert len(later) == 3


def test_a_gradient_gets_the_parameters_memory_layout():
    """A hand-written backward may return another, which a fused optimizer would misread."""
    p = torch.nn.Parameter(torch.zeros(2, 3))
    list(second([Share(p, torch.arange(6.0).view(3, 2).t())]))
    assert p.grad.is_contiguous()
    assert p.grad.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_a_frozen_parameter_gets_nothing():
    stage, x, gradient = stage_and_input(CONFIGS["GPT-2"])
    stage.blocks["0"].mlp.up.weight.requires_grad_(False)
    stage.blocks["0"].mlp_norm.weight.requires_grad_(False)
    _, parts, later = both_parts(stage, x, gradient)
    missing = {name for name, own in parts.items() if own is None}
    assert missing == {"blocks.0.mlp.up.weight", "blocks.0.mlp_norm.weight"}
    assert all(p.requires_grad for p in later)


def test_a_whole_backward_still_works():
    stage, x, gradient = stage_and_input(CONFIGS["GPT-2"])
    stage(x).backward(gradient)
    whole = {name: p.grad for name, p in stage.named_parameters()}
    stage.zero_grad()
    both_parts(stage, x, gradient)
    stage.zero_grad()
    stage(x).backward(gradient)
    for name, p in stage.named_parameters():
        torch.testing.assert_close(p.grad, whole[name], rtol=0, atol=1e-12)


def test_a_first_part_that_failed_leaves_the_next_backward_whole():
    module, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(2, 4, requires_grad=True)
    both = TwoParts(module)
    with pytest.raises(RuntimeError, match="shape"):
        both.first(get_gradient_edge(module(x)), x, torch.ones(2, 5))
    y = torch.tanh(nn.functional.linear(x, module[0].weight, module[0].bias))
    wanted = torch.autograd.grad(y.sum(), module[0].weight)[0]
    module(x).sum().backward()
    torch.testing.assert_close(module[0].weight.grad, wanted)


def test_a_module_that_rounds_keeps_its_own_product():
    linear, x = EmulatedLinear.of(nn.Linear(4, 3)), torch.randn(2, 4)
    wanted = linear(x)
    TwoParts(linear)
    assert torch.equal(linear(x), wanted)


class Kept:
    """A tensor that autograd saved, so that a weak reference shows whether it still does."""

    def __init__(self, tensor):
        self.tensor = tensor


def test_the_first_part_frees_all_but_the_inputs_of_the_products():
    """The loss saves the logits' softmax, which no product needs."""
    stage, x, _ = stage_and_input(CONFIGS["Llama"])
    both, saved = TwoParts(stage), []

    def pack(tensor):
        kept = Kept(tensor.detach())  # an output with its graph would keep itself alive
        saved.append(weakref.ref(kept))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        loss, _ = stage.criterion(stage(x), torch.zeros(3, 12, dtype=torch.int64))
    root = get_gradient_edge(loss)
    del loss
    assert any(kept() for kept in saved)
    _, later = both.first(root, x, torch.ones((), dtype=torch.float64))
    del root
    assert not any(kept() for kept in saved)
    assert sum(share.x is not None for share in later) == 15  # 7 in each block, and the head
    list(second(later))
    assert not later
