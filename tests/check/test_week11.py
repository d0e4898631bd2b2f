"""Week 11, beyond the loop over all exercises: the references beside the package and a search."""

import pytest
import torch

from helpers.check import week11 as exercises
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.offload.delay import delayed
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.plans.offload_bandwidth import KINDS, bandwidth_for, intensity

UNITS = 28  # of parameters; the best mixes below are multiples of 1/UNITS


@pytest.mark.parametrize("passes", [2, 3, 24])
@pytest.mark.parametrize("room", [0, 1, 2, 9, 16, 20])
def test_no_mix_of_the_three_ways_sends_less(room, passes):
    """`room` in bytes for each parameter."""
    found = [
        4 * kept + 2 * (1 + passes) * (UNITS - whole - kept)
        for whole in range(UNITS + 1)
        for kept in range(UNITS + 1 - whole)
        if 16 * whole + 2 * kept <= room * UNITS
    ]
    assert exercises.fewest_bytes(room * UNITS, UNITS, passes) == pytest.approx(min(found))


@pytest.mark.parametrize(("kind", "moved"), list(zip(KINDS[:2], (8, 32), strict=True)))
@pytest.mark.parametrize("overlap", [False, True])
def test_the_bandwidth_is_the_package_s(kind, moved, overlap):
    for recompute in (True, False) if kind == KINDS[1] else (True,):
        ratio = intensity(kind, tokens=4096, recompute=recompute)
        found = exercises.bandwidth_of(0.7, moved, 4096, 3e14, recompute, overlap)
        assert found == pytest.approx(bandwidth_for(0.7, ratio, 3e14, overlap=overlap))


def test_a_late_step_is_the_package_s():
    """Four steps of a GPT: float32 on the device, float64 in the master copies."""
    config = GPTConfig(vocab=16, context=8, width=8, layers=1, heads=2)
    rule = OptimizerConfig(rule="sgd", momentum=0.0, lr=0.1, clip=None, weight_decay=0.0)
    given = {"dtype": torch.float64, "optimizer": rule}
    ours = Recipe(owner=delayed(), precision=Mixed(torch.float32))(config, 0, **given)
    one = Single(config, 0, optimizer=rule)
    first = torch.cat([t.flatten() for t in ours.full_state()["model"].values()])
    state = first.float(), first, None

    def gradient(k, parameters):
        places = parameters.split([p.numel() for p in one.parameters.values()])
        with torch.no_grad():
            for p, values in zip(one.parameters.values(), places, strict=True):
                p.copy_(values.view_as(p))
        one.step(random_batch(k, 4, 8, 16))
        return torch.cat([g.flatten() for g in one.full_gradients().values()])

    for k in range(4):
        ours.step(random_batch(k, 4, 8, 16))
        args = lambda p, k=k: gradient(k, p), lambda m, g: m - 0.1 * g
        state = exercises.one_late(*state, *args)
    state = state[1] - 0.1 * state[2]  # the package's state has the update that still runs
    found = torch.cat([t.flatten() for t in ours.full_state()["model"].values()])
    assert (found - first).abs().max() > 1e-2
    torch.testing.assert_close(found, state, rtol=0, atol=1e-6)
