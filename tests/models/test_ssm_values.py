"""First decays and steps are those of the papers, and depend on the generator alone."""

import math

import torch
from torch.nn import functional

from helpers.models.ssm_values import log_decays, step_bias


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_mambas_channels_decay_by_1_to_N():
    decays = log_decays((3, 4), generator()).exp()
    assert decays.dtype is torch.float64
    torch.testing.assert_close(decays, torch.tensor([[1.0, 2, 3, 4]] * 3, dtype=torch.float64))


def test_mamba2s_heads_decay_by_1_to_16():
    decays = log_decays((4000,), generator()).exp()
    assert 1 <= decays.min() < 1.1
    assert 15.9 < decays.max() <= 16
    assert abs(decays.mean() - 8.5) < 0.3  # uniform: the mean of 4000 is within 0.07
    assert not torch.equal(log_decays((8,), generator()), log_decays((8,), generator(1)))


def test_steps_are_log_uniform():
    steps = functional.softplus(step_bias((4000,), generator()))
    assert 0.001 <= steps.min() < 0.00102
    assert 0.098 < steps.max() <= 0.1 + 1e-12
    assert abs(steps.log().mean() - math.log(0.01)) < 0.1  # the middle of the logarithms
    assert torch.equal(step_bias((5,), generator()), step_bias((5,), generator()))
    assert not torch.equal(step_bias((5,), generator()), step_bias((5,), generator(1)))
