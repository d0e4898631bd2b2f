"""The counts are those of the built model and of a measured step."""

import pytest

from helpers.data.pictures import random_pictures
from helpers.measure.flops import flops_of
from helpers.models.initialization import build
from helpers.models.vae_config import VAEConfig
from helpers.models.vae_counts import flops_per_picture, parameters

CONFIGS = [
    VAEConfig(side=4, width=6, layers=1, latent=3),
    VAEConfig(side=5, width=7, layers=3, latent=2),
]


@pytest.mark.parametrize("config", [*CONFIGS, VAEConfig.preset("mnist")])
def test_parameters(config):
    assert parameters(config) == sum(p.numel() for p in config.build(device="meta").parameters())


@pytest.mark.parametrize("config", CONFIGS)
def test_flops_of_a_step(config):
    model, batch = build(config), random_pictures(0, 11, config.side)
    counted = flops_of(lambda: model.loss(batch)[0].backward())
    assert counted.forward == 11 * flops_per_picture(config, "forward")
    assert counted.backward == 11 * flops_per_picture(config, "backward")
    assert counted.total == 11 * flops_per_picture(config)


def test_other_parts_are_refused():
    with pytest.raises(ValueError, match="part must be one of forward, backward, training"):
        flops_per_picture(CONFIGS[0], "recomputed")
