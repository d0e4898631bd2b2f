"""The learning rate by step: a linear warm-up, then half a cosine."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """`schedule(step)` is the learning rate of steps 0 … steps-1, and constant afterwards.

    Attributes:
        peak: the highest learning rate, reached after `warmup` steps.
        steps: the length of the run. The cosine should end with the training. A cosine that is cut
            short ends at too high a rate, and so at too high a loss (Hoffmann et al. 2022, section
            3.1 and appendix B).
        warmup: steps during which the rate rises.
        final: the last rate, as a fraction of the peak.

    Raises:
        ValueError: a value out of its range.
    """

    peak: float
    steps: int
    warmup: int = 0
    final: float = 0.1

    def __post_init__(self):
        if self.peak < 0 or not 0 <= self.final <= 1:
            raise ValueError("peak must not be negative, and final must be in [0, 1]")
        if not 0 <= self.warmup <= self.steps or self.steps < 1:
            raise ValueError(
                f"steps must be at least 1, and warmup must be in [0, steps]: "
                f"steps={self.steps}, warmup={self.warmup}"
            )

    def __call__(self, step: int) -> float:
        step = min(step, self.steps - 1)
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        gone = (step - self.warmup) / max(self.steps - 1 - self.warmup, 1)
        wave = (1 + math.cos(math.pi * gone)) / 2
        return self.peak * (self.final + (1 - self.final) * wave)
