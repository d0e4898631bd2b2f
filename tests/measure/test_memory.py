"""Bytes by kind agree with models of known size."""

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.measure.memory import LiveStorages, Memory, SavedTensors, bytes_of, memory_of, own
from helpers.runtime.launch import launch
from tests.cuda import Cuda

FLOAT = 4
WEIGHTS = (10 * 20 + 20) + (20 * 5 + 5)  # of two_layers


def two_layers():
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))


def training(model, x, optimizer):
    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def test_a_known_model_with_adam():
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters())
    found = memory_of(training(model, torch.randn(7, 10), optimizer), model, optimizer)
    assert found.parameters == found.gradients == FLOAT * WEIGHTS
    assert found.optimizer == 2 * FLOAT * WEIGHTS + 4 * FLOAT  # and one step count per tensor
    assert found.buffers == 0
    # the input, the hidden layer after the ReLU (saved twice, stored once), the result
    assert found.activations == FLOAT * 7 * (10 + 20 + 5)
    assert found.model_states == 4 * FLOAT * (WEIGHTS + 1)
    assert found.peak >= found.model_states
    again = memory_of(lambda: None, model, optimizer)  # all of it is there before the step
    assert again.peak == again.model_states


def test_gradients_that_are_gone_after_the_step():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = training(model, torch.randn(7, 10), optimizer)

    def step_and_clear():
        step()
        optimizer.zero_grad()

    found = memory_of(step_and_clear, model, optimizer)
    assert found.gradients == FLOAT * WEIGHTS
    assert found.optimizer == 0


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 8)
            self.head = nn.Linear(8, 30, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    model = Tied()
    tokens = torch.arange(6)
    found = memory_of(lambda: model(tokens).sum().backward(), model)
    assert found.parameters == found.gradients == FLOAT * 30 * 8
    # int64 tokens, and the head's input; its weight is a parameter, transposed or not
    assert found.activations == 8 * 6 + FLOAT * 6 * 8


def test_views_of_one_storage_count_once_and_wholly():
    flat = torch.zeros(100)
    assert bytes_of([flat[:10], {"a": flat[50:], "b": (flat,)}]) == 400
    assert bytes_of([flat[:1]]) == 400
    assert bytes_of([flat, flat.clone(), None, 3]) == 800
    model = nn.Module()
    for name, view in (("cosine", flat[:30]), ("sine", flat[30:60])):
        model.register_buffer(name, view)
    assert memory_of(lambda: None, model).buffers == 400


def test_buffers_and_frozen_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].weight.requires_grad_(False)
    found = memory_of(lambda: model(torch.randn(3, 4)).sum().backward(), model)
    assert found.buffers == 2 * 4 * FLOAT + 8  # mean, variance, and a count in int64
    assert found.parameters == FLOAT * (16 + 4 + 4 + 4)
    assert found.gradients == FLOAT * (4 + 4 + 4)


def test_several_models_and_an_optimizer_inside_another():
    """Some optimizers have PyTorch's own inside, for example ZeroRedundancyOptimizer."""
    models = [nn.Linear(4, 2, bias=False), nn.BatchNorm1d(2)]
    inner = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1, momentum=0.9)
    outer = torch.optim.SGD(models[0].parameters(), lr=0.1)
    outer.optim = inner
    x = torch.randn(3, 4)

    def step():
        models[1](models[0](x)).square().sum().backward()
        inner.step()

    found = memory_of(step, models, outer)
    assert found.parameters == found.gradients == found.optimizer == FLOAT * (8 + 2 + 2)
    assert found.buffers == 2 * 2 * FLOAT + 8


def test_tensors_without_memory_of_their_own_do_not_count():
    sparse = torch.eye(3).to_sparse()
    assert bytes_of([sparse, torch.ones(2)]) == 8
    with LiveStorages([]) as live:
        torch.ones(1000, device="meta") + 1
    assert live.peak == 0


def test_several_dtypes():
    model = nn.Linear(10, 10, bias=False).to(torch.bfloat16)
    x = torch.randn(3, 10, dtype=torch.bfloat16)
    found = memory_of(lambda: model(x).sum().backward(), model)
    assert (found.parameters, found.gradients, found.activations) == (200, 200, 60)


def test_a_checkpointed_block_holds_its_input_only():
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    x = torch.randn(5, 8, requires_grad=True)
    plain = memory_of(lambda: block(x).sum().backward(), block)
    again = memory_of(lambda: checkpoint(block, x, use_reentrant=False).sum().backward(), block)
    assert plain.activations == 2 * FLOAT * 5 * 8
    assert again.activations == FLOAT * 5 * 8


def test_activations_are_counted_as_they_come_and_go():
    """Micro-batches in turn need the activations of one, together those of all."""
    model = two_layers()
    batches = [torch.randn(7, 10) for _ in range(3)]

    def one_by_one():
        for x in batches:
            model(x).square().mean().backward()

    def all_first():
        for loss in [model(x).square().mean() for x in batches]:
            loss.backward()

    one = FLOAT * 7 * (10 + 20 + 5)
    assert memory_of(one_by_one, model).activations == one
    assert memory_of(all_first, model).activations == 3 * one


def test_saving_changes_no_gradient():
    model, x = two_layers(), torch.randn(7, 10)
    model(x).square().mean().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    memory_of(lambda: model(x).square().mean().backward(), model)
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


def test_the_peak_is_that_of_living_tensors():
    with LiveStorages([]) as live:
        a = torch.zeros(1000)
        b = a + 1
        assert live.now == 8000
        del a
        assert live.now == 4000
        view = b[:3]
        del b
        assert live.now == 4000  # the view keeps the whole storage alive
        del view
        assert live.now == 0
    assert live.peak == 8000


def test_the_peak_counts_existing_but_not_emptied_storages():
    there = torch.zeros(1000)
    with LiveStorages([there]) as live:
        assert live.now == 4000
        there.untyped_storage().resize_(0)  # FSDP frees gathered parameters so, without an operator
        other = torch.zeros(500)
        assert live.peak == 4000  # not 6000
        assert live.now == 2000
        more = torch.zeros(2000)  # the emptied storage is taken off once only
        assert live.now == live.peak == 10_000
        more.untyped_storage().resize_(16_000)  # gathered again, without an operator
        again = torch.zeros(1)
        assert live.now == live.peak == 18_004
        del there, more, again
        assert live.now == 2000
    assert other.sum() == 0


def sharded(worker):
    from torch.distributed.fsdp import fully_shard

    block = nn.Linear(30, 40, bias=False)
    model = fully_shard(nn.Sequential(fully_shard(block), nn.ReLU()))
    optimizer = torch.optim.Adam(model.parameters())
    return memory_of(training(model, torch.randn(3, 30), optimizer), model, optimizer)


def test_a_sharded_model_counts_with_its_part():
    """FSDP2: gathered parameters count in the peak, but not as activations."""
    whole = FLOAT * 30 * 40
    for found in launch(sharded, workers=2):
        assert found.parameters == found.gradients == whole / 2
        assert found.optimizer == whole + FLOAT
        assert found.activations == FLOAT * 3 * (30 + 40)
        assert found.peak >= whole / 2 + whole  # a shard, and the gathered parameters


def in_a_fresh_process(worker):
    before = "torch._dynamo" in sys.modules
    memory_of(lambda: torch.ones(3).sum(), nn.Linear(2, 2))
    return ("torch._dynamo" in sys.modules) > before


def test_a_measurement_imports_no_compiler():
    """That takes a second."""
    assert list(launch(in_a_fresh_process, workers=1, device="cpu")) == [False]


def moved(worker):
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    rows, columns = (distribute_tensor(torch.ones(8, 16), mesh, [Shard(dim)]) for dim in (0, 1))
    with LiveStorages([rows, columns]) as live:
        before = live.now
        rows + columns
    return before, live.peak


def test_tensors_inside_a_sharded_tensor_count_in_the_peak():
    half = FLOAT * 8 * 16 // 2
    for before, peak in launch(moved, workers=2):
        assert before == 2 * half
        assert peak > before + half  # the sum, and before it one summand in the other's sharding


def test_an_error_leaves_no_hook_behind():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError):
        memory_of(lambda: 1 / 0, model, optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    saved = SavedTensors(dict)
    model(torch.randn(1, 10)).sum().backward()
    assert saved.peak == 0


@pytest.mark.parametrize("gpu", [None, 1])
def test_the_device_s_own_peak_is_that_of_the_step_on_the_model_s_gpu(monkeypatch, gpu):
    cuda, model = Cuda(monkeypatch), nn.Linear(2, 2)
    if gpu is not None:
        there = SimpleNamespace(device=torch.device("cuda", gpu), grad=None, is_leaf=True)
        monkeypatch.setattr(model, "parameters", lambda: [there])
    found = memory_of(lambda: cuda.work(device=gpu), model)
    names = ["synchronize", "reset_peak_memory_stats", "work", "max_memory_allocated"]
    assert cuda.calls == [(name, gpu or 0) for name in names]
    assert found.device_peak == 7000
    assert "7,000" in repr(found)


def test_a_parameter_that_is_a_view_has_no_gradient_of_its_own():
    """FSDP1 registers such views; PyTorch warns of a program that asks for their gradients."""
    row, module = torch.ones(6, requires_grad=True), nn.Linear(3, 2, bias=False)
    row.sum().backward()
    plain = own([module])
    del module.weight
    module.weight = row.view(2, 3)
    module._parameters["weight"] = module.__dict__.pop("weight")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(own([module])) == 1
    assert len(plain) == 2  # the weight, and its gradient: none yet


def test_it_draws_itself():
    found = Memory(
        parameters=1000, gradients=1000, optimizer=2000, buffers=0, activations=500, peak=5000
    )
    assert "5,000" in repr(found)
    assert "device" not in repr(found)
    assert "5,000" in found._repr_html_()
    widths = [bar.get_width() for bar in found.plot().axes[0].patches]
    assert widths == [n / 2**20 for n in (1000, 1000, 2000, 0, 500, 5000)]


@pytest.mark.gpu
def test_the_device_counts_too():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = nn.Linear(512, 512).cuda()
    x = torch.randn(64, 512, device="cuda")
    found = memory_of(lambda: model(x).sum().backward(), model)
    assert found.device_peak >= found.parameters + found.gradients + found.activations
