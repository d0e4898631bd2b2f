"""The protocol of every strategy, so that one loop trains all and one harness compares all."""

import reprlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from os import PathLike

import torch

from helpers.comm.mesh import Mesh
from helpers.data.batch import Batch, Examples
from helpers.parallel.optimizer import OptimizerConfig
from helpers.state import checkpoint
from helpers.state.accept import accept
from helpers.state.all_parts import AllParts
from helpers.state.background import Background
from helpers.state.increments import Increments


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """The result of one step, the same on every rank.

    Attributes:
        loss: the mean over all targets of the global batch, before the update. Scalar tensor.
        grad_norm: the norm of all gradients together, before clipping. Scalar tensor.
        tokens: the number of targets in the global batch.
        skipped: whether the update was skipped because a gradient was not finite. Then parameters,
            moments and step count did not change.
    """

    loss: torch.Tensor
    grad_norm: torch.Tensor
    tokens: int
    skipped: bool = False


def check_start(config, seed: int, micro_batches: int):
    """Check what every strategy is made from.

    Raises:
        TypeError, ValueError: a value cannot be meant.
    """
    if not hasattr(config, "build"):
        raise TypeError(f"config must have a method `build`, as a GPTConfig has, not {config!r}")
    if not isinstance(seed, Integral):
        raise TypeError(f"seed must be a whole number, not {seed!r}")
    if not isinstance(micro_batches, Integral) or micro_batches < 1:
        raise ValueError(f"micro_batches must be a whole number, 1 or more, not {micro_batches!r}")


def check_batch(batch: Examples):
    """Check what every step gets. Raises TypeError."""
    if not isinstance(batch, Examples):
        raise TypeError(f"batch must be a Batch or Pictures, not {reprlib.repr(batch)}")


class Strategy(ABC):
    """One rank's part of a model in training.

    Make it as `strategy(config, seed, mesh, *, dtype, device, optimizer, micro_batches, …)`: the
    model's configuration, the seed of its initial parameters, the ranks. Every strategy starts with
    the same values as one process, whatever its layout.

    A strategy controls forward, backward and update. Pipelines change the order of forward and
    backward, ZeRO changes the update. The input is this rank's part of the global batch; the
    results are global.

    Names and shapes are the plain model's, wherever its tensors are.

    Attributes:
        data_rank: the index of this rank's part of each global batch. Ranks that process the same
            sequences (for example in tensor parallelism) have the same index.
        data_size: the number of parts of each global batch.
        world_size: the number of ranks.
        mesh: the ranks; None for a single process.
        model, optimizer: this rank's own, for `memory_of`: a Module or a list of Modules, and a
            torch optimizer.
        rule, device: of the updates.
        shapes: of all of the model's parameters, by plain name.
        lossy: why results differ from one process beyond rounding; "" for an exact strategy.
        unsaved: what a checkpoint does not have, so that training from it on is not what it would
            have been without a stop; "" for nothing.
        bound: the maximum distance of a lossy strategy from one process: the norm of the
            parameters' difference, over the norm of one process's total update. A strategy that
            does not train at all has the distance 1, so the bound is below 1.
    """

    model: torch.nn.Module | list[torch.nn.Module]
    optimizer: torch.optim.Optimizer
    rule: OptimizerConfig
    device: torch.device
    shapes: Mapping[str, tuple[int, ...]]
    world_size: int = 1
    mesh: Mesh | None = None
    data_rank: int = 0
    data_size: int = 1
    lossy: str = ""
    unsaved: str = ""
    bound: float = 0.0

    @abstractmethod
    def step(self, batch: Batch, lr: float | None = None) -> Step:
        """Run forward, backward and update on this rank's part, which may be empty.

        The loss is the mean over the global batch's targets. Each target has the same weight,
        whatever its rank and micro-batch.

        Args:
            lr: this step's learning rate; None for the rule's own.
        """

    @abstractmethod
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """Compute the loss, summed over the global batch's targets, and the number of targets."""

    @abstractmethod
    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Gather the clipped gradients of the last step. Every rank calls it and gets copies."""

    @abstractmethod
    def full_state(self) -> dict:
        """Gather all training state: {"model": {name: tensor}, "optimizer": {name: {…}}}.

        Every rank calls it and gets a copy of everything.
        """

    def load(self, state: Mapping):
        """Load a `full_state` of any strategy with the same configuration.

        Every rank calls it. If the state does not fit on one rank, every rank raises the same
        error, and nothing has changed. A state without optimizer state, as before the first step,
        is loaded with a warning on rank 0: moments and step count start anew.

        Raises:
            ValueError: a name is missing or unknown; a tensor has another shape, or a number that
                is not finite; the optimizer's state is of another rule.
        """
        rank, _, tell = checkpoint.everyone(self.mesh)
        checkpoint.together(lambda: accept(state, self.shapes), tell)
        checkpoint.together(lambda: self.expect_rule(state["optimizer"]), tell)
        if rank == 0 and not any(state["optimizer"].values()):
            self.tell_anew("the state")
        self.put(state)

    def tell_anew(self, where: str):
        """Warn that moments start anew. Plain SGD has none."""
        if all("dampening" in g and not g["momentum"] for g in self.optimizer.param_groups):
            return
        text = f"{where} has no state of the optimizer: moments and step count start anew"
        warnings.warn(text, stacklevel=3)

    def expect_rule(self, kept: Mapping[str, Mapping]):
        self.rule.expect(kept, self.shapes, self.device)

    @abstractmethod
    def put(self, state: Mapping):
        """Use this state, which fits."""

    def save(
        self,
        folder: str | PathLike,
        background: Background | None = None,
        increments: Increments | None = None,
        **progress,
    ):
        """Write a checkpoint: parameters in full precision, moments, the loss scale, the progress.

        Every rank calls it. A Trainer's ranks write their own shards, so no rank is ever whole. A
        checkpoint is written whole or not at all.

        Args:
            folder: a new one, the same on all ranks, on a disk that all ranks see.
            background: writes while training goes on. Its next `save` or `wait` raises what fails.
            increments: of the run: write only what has changed since its last checkpoint.
            progress: plain numbers, the same on all ranks: updates, the place in the data, ….

        Raises:
            FileExistsError: the folder exists.
            ValueError: a Background, and increments beside it.
        """
        if background and increments:
            raise ValueError("a Background has increments of its own: Background(increments)")
        notes = {"scale": self.scale_state(), "progress": progress}
        save = partial(checkpoint.save, increments=increments)
        save = save if background is None else background.save
        save(folder, self.mesh, *self.stored(), notes)

    def restore(self, folder: str | PathLike) -> dict:
        """Continue from a checkpoint of any strategy with the same configuration, on any ranks.

        Every rank calls it.

        Returns:
            The progress that `save` got.

        Raises:
            BrokenCheckpoint: the checkpoint is torn, incomplete or changed.
            ValueError: as for `load`. The warning, too, is as for `load`.
        """
        parts, tensors, _ = self.stored()
        moments = checkpoint.load(folder, self.mesh, parts, tensors, self.expect_rule)
        rank, _, tell = checkpoint.everyone(self.mesh)
        if not any(tell(any(moments.values()))) and rank == 0:
            self.tell_anew(str(folder))
        notes = checkpoint.notes(folder)
        self.resume(tensors, moments, notes.get("scale", {}))
        return notes.get("progress", {})

    @abstractmethod
    def stored(self) -> tuple[AllParts, Mapping[str, torch.Tensor], Mapping[str, Mapping]]:
        """What a checkpoint has: all ranks' parts; this rank's tensors, and moments, by key."""

    @abstractmethod
    def resume(self, tensors: Mapping[str, torch.Tensor], moments: Mapping[str, Mapping], scale):
        """Go on with these tensors, which a checkpoint was read into, moments and loss scale."""

    def scale_state(self) -> dict[str, float]:
        """The state of the loss scale; {} if there is none."""
        return {}

    def held(self) -> Mapping[tuple[str, str], int]:
        """Count the bytes that this rank holds between steps: (kind, device) -> bytes.

        Kinds are "parameters", "master copies", "gradients" and "optimizer". A strategy that cannot
        count returns {}.
        """
        return {}

    def close(self):  # noqa: B027, most have nothing to release
        """Release the strategy's system resources."""
