"""A variational autoencoder, short to read. One process, without any distribution.

The encoder maps a picture to a normal distribution of Z latent numbers. The decoder maps latent
numbers to a picture. Training makes both agree: a picture's latent numbers give the picture again,
and the latent numbers of all pictures together look like a standard normal distribution. So the
decoder makes new pictures from random numbers.

B  pictures in a batch         P  pixels in a picture, S × S
F  width of a hidden layer     Z  latent numbers of a picture

Source: Kingma and Welling 2013, "Auto-Encoding Variational Bayes", arXiv:1312.6114, sections 2.3,
2.4 and 3; appendices B and C.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import nn
from torch.nn import functional

from helpers.models.dropout import counter, normal
from helpers.models.initialization import first_value
from helpers.models.settings import check_sizes


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
        check_sizes(self)

    @property
    def pixels(self) -> int:
        """P: the number of pixels of a picture, S²."""
        return self.side**2

    def build(self, dtype: torch.dtype = torch.float32, device="cpu", *, seed: int = 0) -> "VAE":
        """Make the model, without filling its parameters."""
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


class VAE(nn.Module):
    """Compute pixels from pictures, through a few latent numbers.

    Args:
        seed: of the latent noise.
    """

    def __init__(
        self,
        config: VAEConfig,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        seed: int = 0,
    ):
        super().__init__()
        self.config, self.seed, place = config, seed, {"dtype": dtype, "device": device}
        hidden = [config.width] * config.layers
        self.encoder = make_layers([config.pixels, *hidden], **place)
        self.posterior = nn.Linear(config.width, 2 * config.latent, **place)
        self.decoder = make_layers([config.latent, *hidden], **place)
        self.pixels = nn.Linear(config.width, config.pixels, **place)

    def plain_name(self, name: str) -> str:
        """The parameter's name in the whole model: a VAE has no stages."""
        return name

    def loss(self, batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss, summed over the pictures, in nats; and the number of pictures.

        The loss is the negative of the evidence lower bound, with one sample of the latent numbers
        (Kingma and Welling, equation 10 with L = 1).

        Args:
            batch: a `helpers.data.batch.Pictures`: images, numbers, step.
        """
        key = counter(self.seed, batch.step, batch.numbers)  # (B,)
        logits, mean, log_variance = self(batch.images, key)
        each = reconstruction_loss(logits, batch.images) + divergence(mean, log_variance)  # (B,)
        return each.sum(), torch.tensor(len(each), device=each.device)

    def forward(
        self, images: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Encode pictures, add noise to the latent numbers, and decode them.

        The noise is an input of the computation, so gradients pass through the mean and the
        variance (the reparameterization, section 2.4).

        Args:
            images: (B, S, S), from 0 to 1.
            key: (B,) int64: `counter` of everything that determines a picture's noise.

        Returns:
            The pixels' logits, (B, S, S); mean and log variance of the latent numbers, (B, Z) each.
        """
        mean, log_variance = self.encode(images)
        noise = normal(key, self.config.latent).to(mean.dtype)  # (B, Z)
        return self.decode(mean + torch.exp(log_variance / 2) * noise), mean, log_variance

    def encode(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute mean and log variance of the latent numbers, (B, Z) each, from (B, S, S)."""
        x = images.flatten(1).to(self.posterior.weight.dtype)  # (B, P)
        for layer in self.encoder:
            x = layer(x)  # (B, F)
        mean, log_variance = self.posterior(x).chunk(2, dim=-1)
        return mean, log_variance

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """Compute the pixels' logits, (B, S, S), from latent numbers (B, Z)."""
        for layer in self.decoder:
            z = layer(z)  # (B, F)
        return self.pixels(z).unflatten(-1, (self.config.side, self.config.side))

    @torch.no_grad()
    def reconstruct(self, images: torch.Tensor) -> torch.Tensor:
        """Encode pictures and decode their means, without noise: (B, S, S), from 0 to 1."""
        mean, _ = self.encode(images)
        return self.decode(mean).sigmoid()

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0) -> torch.Tensor:
        """Decode random latent numbers to new pictures: (count, S, S), from 0 to 1."""
        like = self.posterior.weight
        z = normal(counter(seed, torch.arange(count, device=like.device)), self.config.latent)
        return self.decode(z.to(like.dtype)).sigmoid()


class Layer(nn.Module):
    """A linear map and tanh, as in appendix C."""

    def __init__(self, inputs: int, outputs: int, **place):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, **place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


def make_layers(sizes: list[int], **place) -> nn.ModuleList:
    """Make the layers between neighbouring sizes."""
    return nn.ModuleList(Layer(a, b, **place) for a, b in pairwise(sizes))


def reconstruction_loss(logits: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Compute -log p(picture | latent numbers) of each picture: (B,), in nats.

    Each pixel is a Bernoulli variable (appendix C.1). A grey value counts as the probability of
    white.

    Args:
        logits, images: (B, S, S); reduced in float32 at least.
    """
    logits = wide(logits)
    losses = functional.binary_cross_entropy_with_logits(
        logits, images.to(logits.dtype), reduction="none"
    )
    return losses.flatten(1).sum(1)


def divergence(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    """Compute KL(normal(mean, variance) || normal(0, 1)) of each picture: (B,), in nats.

    Args:
        mean, log_variance: (B, Z); reduced in float32 at least.

    Source: appendix B.
    """
    mean, log_variance = wide(mean), wide(log_variance)
    return (mean**2 + log_variance.exp() - 1 - log_variance).sum(1) / 2


def wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()
