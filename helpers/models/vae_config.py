"""The configuration of a variational autoencoder, and presets for the digits."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from helpers.models.initialization import first_value

if TYPE_CHECKING:
    from helpers.models.vae import VAE


@dataclass(frozen=True, kw_only=True)
class VAEConfig:
    """The configuration of a variational autoencoder. The defaults suit digits of 8×8 pixels.

    Attributes:
        side: S, the height and the width of a picture, in pixels.
        width: F, numbers in a hidden layer.
        layers: the number of hidden layers, in the encoder and again in the decoder.
        latent: Z, the number of latent numbers of a picture.

    Raises:
        ValueError: a value is not a positive whole number.
    """

    side: int = 8
    width: int = 128
    layers: int = 2
    latent: int = 8

    def __post_init__(self):
        for name in ("side", "width", "layers", "latent"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a positive whole number, not {size!r}")

    @property
    def pixels(self) -> int:
        """P: the number of pixels of a picture, S²."""
        return self.side**2

    def build(self, dtype: torch.dtype = torch.float32, device="cpu", *, seed: int = 0) -> "VAE":
        """Make the model, without filling its parameters."""
        from helpers.models.vae import VAE

        return VAE(self, dtype, device, seed=seed)

    def first_value(self, name: str, shape, seed: int) -> torch.Tensor:
        """Make the whole initial tensor of the parameter with this name, in float64."""
        return first_value(name, shape, seed, self.layers)

    @classmethod
    def preset(cls, name: str, **changes) -> Self:
        """Make the configuration of a preset: "digits" for 8×8 pixels, "mnist" for 28×28.

        Args:
            changes: replace the preset's values.

        Raises:
            ValueError: no such preset.
        """
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})


PRESETS = {
    "digits": {},
    # Kingma and Welling 2013, section 5: 500 hidden units for MNIST; figure 5: up to 20 latent
    "mnist": {"side": 28, "width": 500, "layers": 1, "latent": 20},
}
