"""The decay mask is the plain model's, whatever the local shapes."""

import torch
from hypothesis import given, settings

from helpers.state.decay import decays
from helpers.state.part import Part
from helpers.state.slicing import put
from tests.state.cases import spread


@settings(deadline=None)
@given(spread())
def test_the_mask_of_one_process(drawn):
    _, _, parts = drawn
    for name, shape in parts.shapes.items():
        mask = torch.zeros(shape)
        for own in parts.ranks:
            for part in own.values():
                if part.name == name:
                    put(part, torch.full(part.local_shape, float(decays(part))), mask)
        assert torch.equal(mask, torch.full(shape, float(len(shape) >= 2)))


def test_a_states_decays_are_kept():
    """Gu and Dao's code trains A_log without weight decay; it is a matrix in Mamba."""
    for name, shape, expected in (
        ("blocks.0.mamba.A_log", (8, 4), False),
        ("blocks.0.mamba2.A_log", (8,), False),
        ("blocks.0.mamba.convolution.weight", (8, 4), True),
        ("blocks.0.mamba.delta.bias", (8,), False),
    ):
        assert decays(Part(name=name, shape=shape, holders=(0,))) is expected, name
