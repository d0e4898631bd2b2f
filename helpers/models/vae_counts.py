"""Count a VAE's parameters and FLOPs per picture, without building it.

Letters as in vae.py: P, F, Z.
"""

from helpers.models.vae_config import VAEConfig


def parameters(config: VAEConfig) -> int:
    """Count the parameters of the model: matrices and biases."""
    return sum(inputs * outputs + outputs for inputs, outputs in matrices(config))


def flops_per_picture(config: VAEConfig, part: str = "training") -> int:
    """Count the FLOPs of the matrix products for one picture. A multiply-add is 2 FLOPs.

    The backward needs twice the forward's products, except one: the gradient of the pixels.

    Args:
        part: "training" (forward and backward), "forward" or "backward".

    Raises:
        ValueError: no such part.
    """
    (pixels, width), *_ = matrices(config)
    forward = 2 * sum(inputs * outputs for inputs, outputs in matrices(config))
    backward = 2 * forward - 2 * pixels * width
    flops = {"forward": forward, "backward": backward, "training": forward + backward}
    if part not in flops:
        raise ValueError(f"part must be one of {', '.join(flops)}, not {part!r}")
    return flops[part]


def matrices(config: VAEConfig) -> list[tuple[int, int]]:
    """The (inputs, outputs) of each matrix, from the pixels to the pixels."""
    inner = [(config.width, config.width)] * (config.layers - 1)
    return [
        (config.pixels, config.width),
        *inner,
        (config.width, 2 * config.latent),
        (config.latent, config.width),
        *inner,
        (config.width, config.pixels),
    ]
