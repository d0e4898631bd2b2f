"""The sizes of an autoencoder, its presets, and its first values."""

import pytest
import torch

from helpers.models.vae import VAE
from helpers.models.vae_config import PRESETS, VAEConfig


@pytest.mark.parametrize("name", ["side", "width", "layers", "latent"])
@pytest.mark.parametrize("value", [0, 1.5])
def test_sizes_must_be_positive_whole_numbers(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive whole number"):
        VAEConfig(**{name: value})


def test_presets_have_the_size_of_their_pictures():
    assert {name: VAEConfig.preset(name).pixels for name in PRESETS} == {"digits": 64, "mnist": 784}
    assert VAEConfig.preset("digits") == VAEConfig(side=8, width=128, layers=2, latent=8)
    # Kingma and Welling 2013, section 5 and figure 5
    assert VAEConfig.preset("mnist") == VAEConfig(side=28, width=500, layers=1, latent=20)
    changed = VAEConfig.preset("mnist", latent=2)
    assert (changed.latent, changed.width) == (2, 500)
    made = VAEConfig.preset("digits").build(torch.float64, "meta", seed=7)
    assert (made.seed, made.pixels.weight.dtype) == (7, torch.float64)
    assert isinstance(VAEConfig.preset("digits").build(device="meta"), VAE)
    with pytest.raises(ValueError, match="no preset 'faces'; choose one of digits, mnist"):
        VAEConfig.preset("faces")


def test_first_values_are_of_a_name_a_shape_and_a_seed():
    config = VAEConfig(layers=3)
    first = config.first_value("encoder.0.weight", (400, 100), 5)
    assert first.dtype == torch.float64
    assert first.std() == pytest.approx(1 / 10, rel=0.02)  # 1/√(inputs)
    assert torch.equal(first, config.first_value("encoder.0.weight", (400, 100), 5))
    assert not torch.equal(first, config.first_value("encoder.0.weight", (400, 100), 6))
    assert not torch.equal(first, config.first_value("encoder.1.weight", (400, 100), 5))
    assert not config.first_value("encoder.0.bias", (4,), 5).any()
