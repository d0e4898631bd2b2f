"""Any legal layout, without processes: index arithmetic, slicing, first values, loading, the norm.

Each example is one random layout, and every function that needs only parts is tried on it.
"""

import math
from dataclasses import asdict
from json import dumps, loads

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.initialization import first_value
from helpers.state.all_parts import decoded
from helpers.state.part import Part, decays
from helpers.state.pending import norms
from helpers.state.pieces import pieces, slices
from helpers.state.slicing import first_values, load, load_optimizer, take
from helpers.state.storage import in_rows
from tests.state.cases import DTYPES, numbers, put, spread


def enumerated(part: Part) -> torch.Tensor:
    """The plain position of each number of the local tensor, computed index by index."""
    numbered = torch.arange(math.prod(part.shape)).view(part.shape)
    for cut in part.cuts:
        chosen = [i for start, stop in cut.ranges for i in range(start, stop)]
        numbered = numbered.index_select(cut.dim, torch.tensor(chosen, dtype=torch.int64))
    return numbered if part.flat is None else numbered.flatten()[slice(*part.flat)]


def check_pieces(part: Part):
    local = enumerated(part)
    assert tuple(local.shape) == part.local_shape
    plain, seen = torch.arange(math.prod(part.shape)).view(part.shape), []
    for piece in pieces(part):
        assert torch.equal(piece.of(local), plain[slices(piece.box)])
        seen += piece.of(local).flatten().tolist()
    assert sorted(seen) == sorted(local.flatten().tolist())  # each number in one piece


def check_first_values(own, seed):
    made = []

    def make(name, shape):
        made.append(name)
        return first_value(name, shape, seed, 2) if len(shape) > 1 else torch.ones(shape)

    local = {key: torch.empty(part.local_shape) for key, part in own.items()}
    first_values(own, local, make)
    # only tensors of which the rank holds numbers, once each
    assert made == [part.name for part in own.values() if part.numel]
    for key, part in own.items():
        assert torch.equal(local[key], take(part, make(part.name, part.shape).float()))


def check_loading(own, plain, state):
    local = {key: torch.zeros(part.local_shape) for key, part in own.items()}
    load(own, local, plain)
    kept = load_optimizer(own, state)
    for key, part in own.items():
        share = take(part, plain[part.name])
        assert torch.equal(local[key], share.float())  # cast to the local dtype
        assert torch.equal(kept[key]["exp_avg"], share.double() * 2)  # not cast
        assert (kept[key]["step"].item(), kept[key]["n"]) == (3.0, 4)


@settings(deadline=None)
@given(spread(), st.sampled_from(DTYPES), st.integers(0, 9))
def test_all_that_follows_from_parts_alone(drawn, dtype, seed):
    _, recipes, parts = drawn  # `AllParts` has checked that every number is held
    assert set(parts.shapes) == {recipe.name for recipe in recipes}
    plain = {name: numbers(shape, dtype) for name, shape in parts.shapes.items()}
    found = {name: torch.zeros_like(tensor) for name, tensor in plain.items()}
    masks = {name: torch.zeros(shape) for name, shape in parts.shapes.items()}
    state = {
        name: {"exp_avg": tensor.double() * 2, "step": torch.tensor(3.0), "n": 4}
        for name, tensor in plain.items()
    }
    rows = []
    for rank, own in enumerate(parts.completed.ranks):
        for part in own.values():
            assert decoded(loads(dumps(asdict(part)))) == part
            check_pieces(part)
            local = take(part, plain[part.name])
            assert (local.shape, local.dtype) == (part.local_shape, dtype)
            put(part, local, found[part.name])
            put(part, torch.full(part.local_shape, float(decays(part))), masks[part.name])
        check_first_values(own, seed)
        check_loading(own, plain, state)
        local = {key: take(part, plain[part.name]).double() for key, part in own.items()}
        rows.append(norms(parts.completed, local, rank))
    for name, shape in parts.shapes.items():
        assert torch.equal(found[name], plain[name])  # scatter, then gather, is the identity
        assert torch.equal(masks[name], torch.full(shape, float(len(shape) >= 2)))
    rows = torch.stack(rows)
    assert ((rows != 0).sum(0) <= 1).all()  # at most one rank counts a region
    expected = math.sqrt(sum(t.double().square().sum().item() for t in plain.values()))
    assert rows.square().sum().sqrt().item() == pytest.approx(expected, rel=1e-14)
    stored = in_rows(parts)
    assert stored.shapes == parts.shapes
    assert all(own.keys() == parts.shapes.keys() for own in stored.ranks)
    for own in parts.ranks:  # with its pending sums
        assert all(decoded(loads(dumps(asdict(part)))) == part for part in own.values())
