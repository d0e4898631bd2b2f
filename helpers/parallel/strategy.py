"""What every way to train promises, so that one loop trains them and one harness judges them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helpers.data.batch import Batch


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """What one step tells; the same on every rank.

    Attributes:
        loss: the mean over all targets of the global batch, before the update. Scalar tensor.
        grad_norm: of all gradients together, before clipping. Scalar tensor.
        tokens: how many targets of the global batch the loss is a mean over.
        skipped: whether the update was left out, since a gradient was not finite. Then parameters,
            moments and their step count are what they were.
    """

    loss: torch.Tensor
    grad_norm: torch.Tensor
    tokens: int
    skipped: bool = False


class Strategy(ABC):
    """One rank's part of a model in training.

    A strategy is built as `strategy(config, seed, mesh, *, dtype, device, optimizer,
    micro_batches, …)`: the model's configuration, the seed of its first parameters, the ranks.
    Every strategy begins with the numbers that one process would begin with, whatever its layout.

    A strategy owns forward, backward and update: pipelines order the first two as they like, ZeRO
    the last. What goes in is this rank's part of the global batch; what comes out is global.

    Names and shapes are those of the plain model in one process, wherever its tensors are.

    Attributes:
        data_rank, data_size: which part of each global batch this rank gets, of how many. Ranks
            that work on the same sequences (tensor parallel, say) share it.
        world_size: how many ranks share the work.
        model, optimizer: what this rank itself holds, for `memory_of`: a Module or several in a
            list, and an optimizer of torch's kind.
        lossy: why results differ from one process beyond rounding; "" for an exact strategy.
        bound: how far a lossy strategy may be from one process, relative to how far that has moved:
            the norm of the parameters' difference over the norm of all updates together. Below 1:
            at 1 is a strategy that does not train at all.
    """

    model: torch.nn.Module | list[torch.nn.Module]
    optimizer: torch.optim.Optimizer
    world_size: int = 1
    data_rank: int = 0
    data_size: int = 1
    lossy: str = ""
    bound: float = 0.0

    @abstractmethod
    def step(self, batch: Batch, lr: float | None = None) -> Step:
        """Forward, backward and update on this rank's part, which may be empty.

        The loss, and so the gradient, is the mean over the global batch's targets: each target
        counts alike, however they are spread over ranks and micro-batches.

        Args:
            lr: this step's learning rate; None for the rule's own.
        """

    @abstractmethod
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """The loss summed over the targets of the global batch, and how many they are."""

    @abstractmethod
    def full_gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of the last step's update (clipped). Every rank calls it; copies."""

    @abstractmethod
    def full_state(self) -> dict:
        """All that training goes on from: {"model": {name: tensor}, "optimizer": {name: {…}}}.

        Every rank calls it and gets all of it; copies.
        """

    @abstractmethod
    def load(self, state: dict):
        """Go on from what `full_state` returned, of any strategy with the same configuration."""

    def held(self) -> Mapping[tuple[str, str], int]:
        """Bytes that this rank holds between steps: (kind, device) -> bytes, where it can tell.

        Kinds are "parameters", "master copies", "gradients" and "optimizer".
        """
        return {}

    def close(self):  # noqa: B027, most have nothing to give back
        """Give back what the strategy took from the system."""
