"""Loss scaling: move small gradients into the range of float16, and adapt the factor to them.

The backward of `scale × loss` gives `scale × gradient`. Float16 has no number below 2^-24, so many
gradients would become zero without the factor (Micikevicius et al. 2018, section 3.2). A factor
that is too large overflows. Then the update is skipped.
"""

import math
from dataclasses import dataclass


@dataclass(kw_only=True)
class LossScale:
    """A factor for the loss, adapted after each step. `static` makes one that never changes.

    The rule is that of `torch.amp.GradScaler`: multiply by `backoff` after a skipped step, and by
    `growth` after `interval` good steps in a row.

    Attributes:
        scale: the present factor. Powers of two change no significant bit of a gradient.
        growth, backoff: the factors of the factor.
        interval: how many good steps in a row make it grow.
        good_steps: the good steps since the last change.

    Raises:
        ValueError: a factor is out of its range.
    """

    scale: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good_steps: int = 0

    def __post_init__(self):
        if not 0 < self.scale < math.inf:
            raise ValueError(f"the scale must be a positive number, not {self.scale}")
        if not 0 < self.backoff <= 1 <= self.growth < math.inf:
            raise ValueError(
                f"growth must be at least 1 and backoff in (0, 1], not {self.growth} and "
                f"{self.backoff}"
            )
        if self.interval < 1:
            raise ValueError(f"the interval must be at least 1 step, not {self.interval}")

    def update(self, *, skipped: bool):
        """Adapt the factor after a step.

        Args:
            skipped: whether a gradient of the step was not finite, so that its update was skipped.
        """
        if skipped:
            self.scale *= self.backoff
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.good_steps = 0
            # GradScaler computes the scale in float32, and keeps it if it would overflow.
            if self.scale * self.growth <= LARGEST:
                self.scale *= self.growth

    def state(self) -> dict[str, float]:
        """The numbers that a checkpoint needs: a training that continues makes equal decisions."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load(self, state: dict[str, float]):
        """Continue from a `state`."""
        self.scale, self.good_steps = float(state["scale"]), int(state["good_steps"])


LARGEST = (2 - 2.0**-23) * 2.0**127  # of float32


def static(scale: float) -> LossScale:
    """Make a factor that never changes. A step that overflows is skipped all the same."""
    return LossScale(scale=scale, growth=1.0, backoff=1.0)
