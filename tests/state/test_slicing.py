"""Scatter, then gather, is the identity: tested without processes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.state.part import Cut, Part
from helpers.state.slicing import fill, put, take
from tests.state.cases import DTYPES, numbers, spread


@settings(deadline=None)
@given(spread(), st.sampled_from(DTYPES))
def test_scatter_then_gather_is_the_identity(drawn, dtype):
    _, _, parts = drawn
    for name, shape in parts.shapes.items():
        plain = numbers(shape, dtype)
        found = torch.zeros_like(plain)
        for own in parts.ranks:
            for part in own.values():
                if part.name == name:
                    local = take(part, plain)
                    assert (local.shape, local.dtype) == (part.local_shape, dtype)
                    put(part, local, found)
        assert torch.equal(found, plain)


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


def test_put_copies_values_alone():
    """A whole tensor put together from parameters does not hold their graph."""
    plain = torch.zeros(4, 6)
    put(PART, torch.nn.Parameter(torch.ones(4, 2)), plain)
    assert plain[:, 4:6].all()
    assert not plain.requires_grad


def test_another_layout_in_memory():
    local = torch.zeros(2, 4, dtype=torch.float64).t()
    fill(PART, local, numbers((4, 6)))
    assert torch.equal(local, numbers((4, 6))[:, 4:6])


@pytest.mark.parametrize("function", [fill, put])
def test_shapes_that_do_not_fit(function):
    with pytest.raises(ValueError, match=r"w \(4, 6\)\[:, 4:6\] on rank 0 has shape .* \(4, 2\)"):
        function(PART, torch.zeros(4, 6), torch.zeros(4, 6))
    for shape in ((2, 4), (8,)):  # as many numbers, in another order
        with pytest.raises(ValueError, match=r"has shape .*, not \(4, 2\)"):
            function(PART, torch.zeros(shape), torch.zeros(4, 6))
    with pytest.raises(ValueError, match=r"of w has shape \(6, 4\), not \(4, 6\)"):
        function(PART, torch.zeros(4, 2), torch.zeros(6, 4))
