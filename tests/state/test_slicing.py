"""Whole tensors and this rank's parts of them: copies, first values, loading, refusals."""

import weakref

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.measure.memory import memory_of
from helpers.state.part import Cut, Part
from helpers.state.placing import Seat, cut, whole
from helpers.state.slicing import fill, first_values, load, load_optimizer, take
from tests.state.cases import numbers

PART = Part(name="w", shape=(4, 6), cuts=[Cut(dim=1, axes=("tp",), ranges=[(4, 6)])], holders=(0,))


def test_take_is_a_copy_of_its_own():
    plain = numbers((4, 6))
    local = take(PART, plain)
    assert torch.equal(local, plain[:, 4:6])
    assert local.untyped_storage().nbytes() == local.nbytes  # the whole tensor can be freed
    local.zero_()
    assert plain.all()
    assert take(PART, plain.to("meta")).device.type == "meta"  # where the whole tensor is


def test_fill_casts_and_writes_to_leaves_that_require_grad():
    local = torch.nn.Parameter(torch.zeros(4, 2, dtype=torch.bfloat16))
    fill(PART, local, numbers((4, 6)) / 3)
    assert torch.equal(local, (numbers((4, 6)) / 3)[:, 4:6].bfloat16())


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"w \(4, 6\)\[:, 4:6\] on rank 0 has shape .* \(4, 2\)"):
        fill(PART, torch.zeros(4, 6), torch.zeros(4, 6))
    for shape in ((2, 4), (8,)):  # as many numbers, in another order
        with pytest.raises(ValueError, match=r"has shape .*, not \(4, 2\)"):
            fill(PART, torch.zeros(shape), torch.zeros(4, 6))
    with pytest.raises(ValueError, match=r"of w has shape \(6, 4\), not \(4, 6\)"):
        fill(PART, torch.zeros(4, 2), torch.zeros(6, 4))


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


def test_where_the_state_is_loaded_to():
    seat = Seat(Layout(tp=2), 1)
    part = cut(seat, whole(seat, "w", (3, 2)), 0, "tp")
    plain = {"w": {"exp_avg": torch.ones(3, 2), "step": torch.tensor(1.0), "n": 2}}
    copied = load_optimizer({"w": part}, plain)["w"]
    copied["step"].zero_()
    copied["exp_avg"].zero_()
    assert plain["w"]["exp_avg"].all()
    assert plain["w"]["step"] == 1.0
    assert load_optimizer({"w": part}, {}) == {}  # a frozen tensor has no state
    kept = load_optimizer({"w": part}, plain, "meta")["w"]
    assert (kept["exp_avg"].device.type, kept["step"].device.type) == ("meta", "meta")
    assert (tuple(kept["exp_avg"].shape), tuple(kept["step"].shape), kept["n"]) == ((1, 2), (), 2)


def test_the_count_of_a_parameter_without_dims():
    """It has the part's own shape, but is a count, also on a rank that holds no numbers."""
    part = Part(name="w", shape=(), flat=(1, 1), holders=[1])
    plain = {"w": {"step": torch.tensor(5.0), "exp": torch.tensor(2.0)}}
    found = load_optimizer({"w": part}, plain)["w"]
    assert found["step"].item() == 5.0
    assert found["exp"].shape == (0,)


def test_nothing_is_written_unless_all_fits():
    seat = Seat(Layout(dp=1), 0)
    parts = {"a": whole(seat, "a", (2,)), "b": whole(seat, "b", (3,))}
    for plain, message in [
        ({"a": torch.ones(2)}, r"b \(3,\) is missing"),
        ({"a": torch.ones(2), "b": torch.ones(2)}, r"b \(3,\) is of shape \(2,\) in the tensors"),
    ]:
        local = {"a": torch.zeros(2), "b": torch.zeros(3)}
        with pytest.raises(ValueError, match=message):
            load(parts, local, plain)
        assert not local["a"].any()
    local = {"a": torch.zeros(2), "b": torch.zeros(4)}  # its part has 3
    with pytest.raises(ValueError, match=r"\(4,\)"):
        load(parts, local, {"a": torch.ones(2), "b": torch.ones(3)})
    assert not local["a"].any()
    with pytest.raises(ValueError, match="'b' has a part but no tensor"):
        load(parts, {"a": torch.zeros(2)}, {})
    plain = {"a": torch.ones(2), "b": torch.ones(3)}
    with pytest.raises(ValueError, match=r"'c' has .* a tensor but no part"):
        load(parts, {**plain, "c": torch.zeros(1)}, plain)
