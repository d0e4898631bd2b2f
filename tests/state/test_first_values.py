"""First values equal one process's, bit for bit, with one whole tensor in memory at a time."""

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.mesh import Layout
from helpers.measure.memory import memory_of
from helpers.models.config import GPTConfig
from helpers.models.gpt import build
from helpers.models.initialization import first_value
from helpers.state.first_values import first_values
from helpers.state.part import Part
from helpers.state.placing import Seat, cut, flat, only, whole
from helpers.state.slicing import take
from tests.state.cases import spread

CONFIG = GPTConfig(vocab=30, context=8, width=12, layers=2, heads=3)


def gpts_parts(seat: Seat) -> dict[str, Part]:
    """Tensor parallel with an odd number of rows, stages, and a flat range over dp."""
    parts = {}
    for name, tensor in build(CONFIG).named_parameters():
        part = whole(seat, name, tensor.shape)
        if name.startswith("embedding"):
            part = only(seat, part, "pp", [0, 1])  # tied: on the first and the last stage
        else:
            part = only(seat, part, "pp", [name.startswith(("blocks.1", "norm"))])
        if part and tensor.dim() == 2:
            part = cut(seat, part, 1 if name.endswith(("out.weight", "down.weight")) else 0, "tp")
        if part:
            parts[name] = flat(seat, part, "dp")
    return parts


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_those_of_the_plain_model(dtype):
    layout = Layout(dp=2, pp=2, tp=2)
    plain = dict(build(CONFIG, seed=3, dtype=dtype).named_parameters())
    make = lambda name, shape: first_value(name, shape, 3, CONFIG.layers)  # noqa: E731
    for rank in range(layout.world_size):
        parts = gpts_parts(Seat(layout, rank))
        local = {key: torch.empty(part.local_shape, dtype=dtype) for key, part in parts.items()}
        first_values(parts, local, make)
        for key, part in parts.items():
            assert torch.equal(local[key], take(part, plain[part.name].detach())), part


@settings(deadline=None)
@given(spread(), st.integers(0, 9))
def test_any_layout(drawn, seed):
    _, _, parts = drawn
    for own in parts.ranks:
        made = []

        def make(name, shape, made=made):
            made.append(name)
            return first_value(name, shape, seed, 2) if len(shape) > 1 else torch.ones(shape)

        local = {key: torch.empty(part.local_shape) for key, part in own.items()}
        first_values(own, local, make)
        for key, part in own.items():
            assert torch.equal(local[key], take(part, make(part.name, part.shape).float()))
        some = [part.name for part in own.values() if part.numel]
        assert made[: len(some)] == some  # only tensors of which the rank holds numbers, once each


def test_one_whole_tensor_at_a_time():
    """The rank holds 1 % of each of ten tensors. Each tensor is freed before the next is made."""
    seats = Seat(Layout(tp=100), 7)
    names, alive = [f"t{i}" for i in range(10)], weakref.WeakSet()
    parts = {name: cut(seats, whole(seats, name, (100, 1000)), 0, "tp") for name in names}
    local = {name: torch.empty(1, 1000) for name in names}

    def make(name, shape):
        assert not alive
        plain = torch.ones(shape, dtype=torch.float64)
        alive.add(plain)
        return plain

    peak = memory_of(lambda: first_values(parts, local, make), torch.nn.Module()).peak
    own = sum(tensor.nbytes for tensor in local.values())
    assert 100 * 1000 * 8 <= peak <= 100 * 1000 * 8 + own


def test_a_tensor_held_twice_is_made_once():
    """A rank holds the first half of a tensor under one key and the second under another."""
    seats = [Seat(Layout(pp=2), rank) for rank in range(2)]
    one, two = (cut(seat, whole(seat, "w", (4, 3)), 0, "pp") for seat in seats)
    made = []

    def make(name, shape):
        made.append(name)
        return torch.arange(12.0).view(shape)

    local = {"a.w": torch.empty(2, 3), "b.w": torch.empty(2, 3)}
    first_values({"a.w": one, "b.w": two}, local, make)
    assert made == ["w"]
    assert torch.equal(torch.cat([*local.values()]), make("w", (4, 3)))


def test_parts_and_tensors_that_do_not_fit():
    seat = Seat(Layout(dp=1), 0)
    parts = {"w": whole(seat, "w", (2,))}
    make = lambda name, shape: torch.ones(shape)  # noqa: E731
    with pytest.raises(ValueError, match="'v' has a part but no tensor, or a tensor but no part"):
        first_values(parts, {"w": torch.zeros(2), "v": torch.zeros(2)}, make)
    with pytest.raises(ValueError, match=r"shape \(3,\), not \(2,\)"):
        first_values(parts, {"w": torch.zeros(3)}, make)
    with pytest.raises(ValueError, match=r"whole tensor of w has shape \(1,\)"):
        first_values(parts, {"w": torch.zeros(2)}, lambda name, shape: torch.ones(1))
