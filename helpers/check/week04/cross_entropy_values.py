"""The right cross-entropy by vocabulary and its gradient, and those of common mistakes.

Every rank has the whole logits (B, T, V) here, and computes what a mistake would make of its part.
"""

from dataclasses import dataclass

import torch

from helpers.check.week04.kinds import RIGHT
from helpers.data.batch import IGNORED

LOWERED = ", lowered"  # the mistake was made after the largest logit was subtracted


@dataclass(frozen=True)
class Cut:
    """Logits and targets as the ranks have them.

    Attributes:
        logits, targets: (B, T, V) and (B, T).
        sizes: of the ranks' parts of the vocabulary.
        rank: whose values are asked for.
    """

    logits: torch.Tensor
    targets: torch.Tensor
    sizes: tuple[int, ...]
    rank: int

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """Each rank's logits (B, T, v)."""
        return self.logits.split(self.sizes, dim=-1)

    @property
    def counted(self) -> torch.Tensor:
        """Places with a target, (B, T)."""
        return self.targets != IGNORED

    def rows(self, r: int, shift: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """The targets' rows of rank r's part, (B, T), and which of them it has; others clamped."""
        rows = self.targets - sum(self.sizes[:r]) * shift
        here = (rows >= 0) & (rows < self.sizes[r])
        return rows.clamp(0, self.sizes[r] - 1), here

    def chosen(self, r: int, shift: bool = True, mask: bool = True) -> torch.Tensor:
        """The targets' logits on rank r, (B, T); with `mask`, 0 where it does not have them."""
        rows, here = self.rows(r, shift)
        found = self.parts[r].gather(-1, rows[..., None])[..., 0]
        return found * here if mask else found

    def lower(self, by: torch.Tensor) -> "Cut":
        """The same with a number (B, T) subtracted from all logits of a token."""
        return Cut(self.logits - by[..., None], self.targets, self.sizes, self.rank)


def losses(cut: Cut) -> dict[str, torch.Tensor]:
    """The right loss and wrong ones, by kind, of one rank."""
    n, counted, rank = len(cut.sizes), cut.counted, cut.rank

    def summed(each):
        return (each * counted).sum()

    total, target = cut.logits.logsumexp(-1), sum(cut.chosen(r) for r in range(n))
    right = summed(total - target)
    kinds = {
        RIGHT: right,
        "the mean": right / counted.sum(),
        "the mean over all places": right / counted.numel(),
        "not summed": (total - target) * counted,
        "N times": n * right,
        "divided by N": right / n,
    }
    local = [part.logsumexp(-1) for part in cut.parts]
    here = [cut.rows(r)[1] for r in range(n)]
    kinds |= {
        "local softmax": summed(local[rank] - target),
        "local softmax, own targets": summed(local[rank] * here[rank] - cut.chosen(rank)),
        "local softmax, summed": sum(summed(local[r] * here[r] - cut.chosen(r)) for r in range(n)),
        "own targets": summed(total * here[rank] - cut.chosen(rank)),
    }
    largest = [part.amax(-1) for part in cut.parts]
    uneven = torch.stack([a - b for a, b in zip(local, largest, strict=True)]).logsumexp(0)
    lowered = sum(cut.chosen(r) - largest[r] * here[r] for r in range(n))
    kinds |= {
        "each rank's maximum": summed(uneven - lowered),
        "each rank's maximum, put back": summed(uneven + largest[rank] - target),
        "local softmax, own maximum": summed(
            local[rank] - largest[rank] - (cut.chosen(rank) - largest[rank] * here[rank])
        ),
    }
    for suffix, by in (("", torch.zeros_like(total)), (LOWERED, cut.logits.amax(-1))):
        low = cut.lower(by)
        found = sum(low.chosen(r) for r in range(n))
        kinds |= {
            f"ignored places counted{suffix}": (total - by - found).sum(),
            f"own target's logit{suffix}": summed(total - by - low.chosen(rank)),
            f"every rank's row{suffix}": summed(
                total - by - sum(low.chosen(r, mask=False) for r in range(n))
            ),
            f"rows not shifted{suffix}": summed(
                total - by - sum(low.chosen(r, shift=False) for r in range(n))
            ),
        }
    return kinds


def gradients(cut: Cut) -> dict[str, torch.Tensor]:
    """The right gradient of a rank's logits (B, T, v) and wrong ones, by kind."""
    n, counted, size = len(cut.sizes), cut.counted[..., None], cut.sizes[cut.rank]
    whole = cut.logits.softmax(-1)
    softmax, local = whole.split(cut.sizes, -1)[cut.rank], cut.parts[cut.rank].softmax(-1)
    (rows, here), (unshifted, low) = cut.rows(cut.rank), cut.rows(cut.rank, shift=False)

    def ones(rows, where):
        return torch.nn.functional.one_hot(rows, size) * where[..., None]

    one, own = ones(rows, here), here[..., None]
    right = (softmax - one) * counted
    every = torch.nn.functional.one_hot(cut.targets.clamp(0), whole.shape[-1])
    return {
        RIGHT: right,
        "ignored places": softmax - one,
        "local softmax": (local - one) * counted,
        "local softmax, own targets": (local - one) * counted * own,
        "softmax alone": softmax * counted,
        "softmax alone, ignored places too": softmax,
        "own targets": right * own,
        "every rank's row": (softmax - ones(rows, torch.ones_like(here))) * counted,
        "rows not shifted": (softmax - ones(unshifted, low)) * counted,
        "the mean": right / counted.sum(),
        "the mean over all places": right / counted.numel(),
        "the sign": -right,
        "N times": n * right,
        "divided by N": right / n,
        "all logits": (whole - every) * counted,
    }
