"""What autograd saves, by module: each storage once, for the module that saved it first."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.measure.memory import memory_of
from helpers.measure.saved import saved_by


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(4, 8), nn.Linear(8, 4), nn.Tanh()

    def forward(self, x):
        return self.down(self.act(self.up(x))).square().sum()


def test_each_module_has_what_it_saved():
    model, x = Net(), torch.ones(2, 4)
    found = saved_by(lambda: model(x), model)
    # tanh and the second linear save one tensor: it counts for tanh
    assert [(one.module, one.shape, one.bytes) for one in found] == [
        ("up", (2, 4), 32),
        ("act", (2, 8), 64),
        ("", (2, 4), 32),
    ]
    assert {one.dtype for one in found} == {torch.float32}
    total = memory_of(lambda: model(x).backward(), model).activations
    assert sum(one.bytes for one in found) == total


def test_a_view_counts_with_its_storage_and_a_released_tensor_not_at_all():
    model, wide = nn.Linear(4, 1), torch.ones(2, 100)

    def forward():
        torch.ones(3, requires_grad=True).sin()  # nobody keeps its graph
        return model(wide[:, :4]).sum()

    assert [(one.module, one.bytes) for one in saved_by(forward, model)] == [("", 800)]


def test_a_checkpointed_module_keeps_its_input():
    model = Net()
    x = torch.ones(2, 4, requires_grad=True)
    found = saved_by(lambda: checkpoint(model.up, x, use_reentrant=False).sum(), model)
    assert [(one.module, one.bytes) for one in found] == [("", 32)]


def test_a_shared_module_has_the_name_inside_its_caller():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared), "c": shared})

    def forward():
        return model["c"](model["b"](model["a"](torch.ones(1, 4)))).sum()

    assert [one.module for one in saved_by(forward, model)] == ["a.0", "b.0", "c"]


def test_an_error_leaves_no_hook():
    model = Net()

    def forward():
        model(torch.ones(2, 5))

    with pytest.raises(RuntimeError, match="shapes"):
        saved_by(forward, model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert len(saved_by(lambda: model(torch.ones(2, 4)), model)) == 3


def test_a_module_that_fails_is_left_too():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x):
            with contextlib.suppress(TypeError):
                self.act("no tensor")
            return x.sin().sum()

    model, x = Careful(), torch.ones(3, requires_grad=True)
    assert [(one.module, one.bytes) for one in saved_by(lambda: model(x), model)] == [("", 12)]
