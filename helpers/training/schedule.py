"""The learning rate by step: linear warm-up, then half a cosine."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """`schedule(step)` for steps 0 … steps-1, flat afterwards.

    Attributes:
        peak: the highest learning rate, reached after `warmup` steps.
        steps: the length of the run. The cosine is to end with the training: one cut from a
            longer schedule ends at too high a rate, and at too high a loss (Hoffmann et al. 2022,
            section 3.1 and appendix B).
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
            raise ValueError("peak must not be negative, and final must lie in [0, 1]")
        if not 0 <= self.warmup <= self.steps or self.steps < 1:
            raise ValueError(
                f"0 ≤ warmup ≤ steps must hold, and steps ≥ 1: {self.warmup}, {self.steps}"
            )

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        gone = (step - self.warmup) / max(self.steps - 1 - self.warmup, 1)
        wave = (1 + math.cos(math.pi * min(gone, 1.0))) / 2
        return self.peak * (self.final + (1 - self.final) * wave)
