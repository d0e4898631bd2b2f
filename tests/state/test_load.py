"""Whole tensors load into parts. test_full_state.py tests `load` together with `full_state`."""

import pytest
import torch
from hypothesis import given, settings

from helpers.comm.mesh import Layout
from helpers.state.load import load, load_optimizer
from helpers.state.part import Part
from helpers.state.placing import Seat, cut, whole
from helpers.state.slicing import take
from tests.state.cases import numbers, spread


@settings(deadline=None)
@given(spread())
def test_every_rank_gets_its_share(drawn):
    _, _, parts = drawn
    plain = {name: numbers(shape) for name, shape in parts.shapes.items()}
    state = {
        name: {"exp_avg": tensor * 2, "step": torch.tensor(3.0), "n": 4}
        for name, tensor in plain.items()
    }
    for own in parts.ranks:
        local = {key: torch.zeros(part.local_shape) for key, part in own.items()}
        load(own, local, plain)
        kept = load_optimizer(own, state)
        for key, part in own.items():
            share = take(part, plain[part.name])
            assert torch.equal(local[key], share.float())  # cast to the local dtype
            assert torch.equal(kept[key]["exp_avg"], share * 2)  # not cast
            assert (kept[key]["step"].item(), kept[key]["n"]) == (3.0, 4)


def test_copies():
    seat = Seat(Layout(dp=1), 0)
    state = {"w": {"exp_avg": torch.ones(2), "step": torch.tensor(1.0)}}
    kept = load_optimizer({"w": whole(seat, "w", (2,))}, state)["w"]
    kept["exp_avg"].zero_()
    kept["step"].zero_()
    assert state["w"]["exp_avg"].all()
    again = load_optimizer({"a key of its own": whole(seat, "w", (2,))}, state)
    assert torch.equal(again["a key of its own"]["exp_avg"], torch.ones(2))
    assert state["w"]["step"] == 1.0


def test_a_part_s_plain_name_counts_and_not_its_key():
    seat = Seat(Layout(tp=2), 1)
    parts = {key: cut(seat, whole(seat, name, (4,)), 0, "tp") for key, name in ("ab", "ba")}
    local = {key: torch.zeros(2) for key in parts}
    load(parts, local, {"a": torch.arange(4.0), "b": -torch.arange(4.0)})
    assert {key: own.tolist() for key, own in local.items()} == {"a": [-2, -3], "b": [2, 3]}


def test_where_the_state_is_loaded_to():
    seat = Seat(Layout(tp=2), 1)
    part = cut(seat, whole(seat, "w", (3, 2)), 0, "tp")
    plain = {"w": {"exp_avg": torch.ones(3, 2), "step": torch.tensor(1.0), "n": 2}}
    kept = load_optimizer({"w": part}, plain, "meta")["w"]
    assert (kept["exp_avg"].device.type, kept["step"].device.type) == ("meta", "meta")
    assert (tuple(kept["exp_avg"].shape), tuple(kept["step"].shape), kept["n"]) == ((1, 2), (), 2)


def test_a_frozen_tensor_has_no_state():
    seat = Seat(Layout(dp=1), 0)
    assert load_optimizer({"w": whole(seat, "w", (2,))}, {}) == {}


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
