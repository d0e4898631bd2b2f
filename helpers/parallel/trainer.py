"""The training step of all our strategies. A recipe fills its four seams."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from helpers.comm.mesh import Mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.strategy import Step, Strategy
from helpers.parallel.sums import GlobalSum
from helpers.parallel.world import ALONE
from helpers.state.first_values import first_values
from helpers.state.placing import pending

if TYPE_CHECKING:
    from helpers.parallel.recipe import Recipe


class Trainer(Strategy):
    """Train a configuration's model by a recipe.

    Args:
        recipe: the four seams.
        config: `config.build(dtype, device, …)` builds the model, whose `loss(batch)` returns a sum
            and a count; `config.first_value(name, shape, seed)` makes the initial parameters.
        seed: of the initial parameters, and of dropout.
        mesh: the ranks; None for a single process. Ranks along the axis "dp" have different
            sequences.
        dtype: of training; the recipe's precision may compute in another dtype.
        device: of the parameters.
        optimizer: the update rule.
        micro_batches: the number of parts into which each rank cuts its batch. The parts run one
            after another, which saves activation memory.

    Raises:
        ValueError: `micro_batches` is below 1; and as the recipe's seams raise.
    """

    def __init__(
        self,
        recipe: "Recipe",
        config,
        seed: int = 0,
        mesh: Mesh | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        optimizer: OptimizerConfig | None = None,
        micro_batches: int = 1,
    ):
        if micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, not {micro_batches}")
        self.config, self.mesh, self.device = config, mesh, torch.device(device)
        self.rule = optimizer or OptimizerConfig()
        self.precision, self.micro_batches = recipe.precision.start(), micro_batches
        seat = mesh or ALONE
        self.world_size = seat.layout.world_size
        if "dp" in seat.layout.axes:
            self.data_rank = seat.layout.coordinates(seat.rank)["dp"]
            self.data_size = seat.layout.size("dp")
        self.model, parts = recipe.transform(config, seed, seat, self.precision.computes_in(dtype))
        self.precision.prepare(self.model)
        if self.data_size > 1:
            parts = {name: pending(seat, part, "dp") for name, part in parts.items()}
        seams = {"rule": self.rule, "precision": self.precision, "dtype": dtype, "device": device}
        self.owner = recipe.owner(self.model, parts, mesh, **seams)
        make = lambda name, shape: config.first_value(name, shape, seed)  # noqa: E731
        first_values(self.owner.world.own, self.owner.masters, make)
        self.spread()
        self.engine = recipe.engine(self.model, self.owner)
        self.groups = groups_along(mesh, self.engine.sums)
        self.loss_groups = groups_along(mesh, self.engine.loss_sums)
        lossy = [seam for seam in (self.precision, self.owner) if seam.lossy]
        self.lossy = ", and ".join(seam.lossy for seam in lossy)
        self.bound = max((seam.bound for seam in lossy), default=0.0)

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The model's parameters, by name."""
        return self.owner.parameters

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.owner.optimizer

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        tokens = GlobalSum(self.groups, self.device, batch.counted()).send()
        loss = GlobalSum(self.loss_groups, self.device)
        self.owner.begin()
        self.engine.step(batch.to(self.device).micro(self.micro_batches), tokens, loss)
        self.owner.complete()
        norm = self.owner.world.norm(self.owner.gradients())
        skipped = self.precision.skips(norm)
        if not skipped:
            rule = self.rule if lr is None else replace(self.rule, lr=lr)
            self.owner.update(rule, self.rule.factor(norm))
            self.spread()
        self.precision.adapt(skipped=skipped)
        count = int(tokens.wait())
        mean = loss.wait() / max(count, 1)
        return Step(loss=mean, grad_norm=norm, tokens=count, skipped=skipped)

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        values = self.engine.evaluate(batch.to(self.device))
        self.owner.rest()
        loss, count = (GlobalSum(self.loss_groups, self.device, float(v)).send() for v in values)
        return float(loss.wait()), int(count.wait())

    def full_gradients(self):
        return self.owner.full_gradients()

    def full_state(self):
        own = self.precision.state()
        return self.owner.full_state() | ({"precision": own} if own else {})

    def load(self, state):
        self.owner.load(state)
        self.precision.load(state.get("precision", {}))
        self.spread()

    def spread(self):
        """Copy the updated master copies to the parameters, on this rank and on other ranks."""
        self.precision.write(self.owner.masters, self.owner.values)
        self.owner.publish()

    def held(self):
        return self.owner.held()

    def close(self):
        self.engine.close()
        self.owner.close()


def groups_along(mesh: Mesh | None, axes: Iterable[str]) -> list[GroupTransport]:
    """This rank's group along each of these axes, if the mesh has the axis."""
    there = () if mesh is None else [axis for axis in axes if axis in mesh.layout.axes]
    return [GroupTransport(mesh.group(axis)) for axis in there]
