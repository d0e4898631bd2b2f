"""The plain owner: this rank holds parameters, gradients and optimizer state, and updates them."""

from collections.abc import Mapping

import torch

from helpers.comm.mesh import Mesh
from helpers.measure.memory import bytes_of
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.precision import Plain
from helpers.parallel.units import Unit
from helpers.parallel.world import World
from helpers.state.load import load, load_optimizer
from helpers.state.part import Part


class Local:
    """Holds everything itself; other owners change a part of it.

    A step calls, in this order: `begin`; from the engine `before`, `gradient` and `after`;
    `complete`; `gradients`, for their norm; `update`; `publish`.

    Args:
        model: this rank's, its parameters not filled yet.
        parts: of its parameters, by name; with the sums that are pending after a backward.
        mesh: None for a single process.
        rule, precision: of the update.
        dtype: of training: what the optimizer updates has it.

    Attributes:
        wants: what an engine must tell this owner: "units" for `before` and `after`, "gradients"
            for `gradient`. An engine may leave the other calls out.
        parameters: of the model, by name.
        values: what this rank keeps up to date: the parameters, or shards of them.
        masters: what the optimizer updates: the values themselves, or their master copies.
        world: of the values.
        lossy, bound: as for Strategy.
    """

    wants: frozenset[str] = frozenset()
    lossy: str = ""
    bound: float = 0.0

    def __init__(
        self,
        model: torch.nn.Module,
        parts: Mapping[str, Part],
        mesh: Mesh | None,
        *,
        rule: OptimizerConfig,
        precision: Plain,
        dtype: torch.dtype,
    ):
        self.parameters = dict(model.named_parameters())
        self.precision = precision
        self.values, held = self.hold(parts, mesh)
        self.masters = precision.masters(self.values, dtype)
        self.world = World(held, mesh)
        trained = {name: p for name, p in self.masters.items() if p.requires_grad}
        self.optimizer = rule.make(trained, held)

    def hold(self, parts: Mapping[str, Part], mesh: Mesh | None):
        """What this rank keeps up to date, and its parts: `values`, {name: part}."""
        return self.parameters, parts

    def begin(self):
        """Forget the last step's gradients."""
        for tensors in (self.parameters, self.values, self.masters):
            for tensor in tensors.values():
                tensor.grad = None

    def before(self, unit: Unit):
        """The engine is about to run a unit, forward or backward: its parameters must be here."""

    def gradient(self, name: str, last: bool):
        """A parameter's `.grad` has one more micro-batch's gradient in it.

        The engine says so: from a hook of autograd, or where it computed the gradient itself.

        Args:
            last: none will follow in this step.
        """

    def after(self, unit: Unit):
        """The engine has run a unit: forward, or backward with all of its gradients."""

    def complete(self):
        """Make the sums that are pending, so that every gradient is the plain model's."""
        self.sum_what_is_left(done=())
        self.precision.collect(self.values, self.masters)

    def sum_what_is_left(self, done):
        """Those over all groups of ranks but these."""
        own = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        for name, gradient in self.world.complete(own, done).items():
            self.parameters[name].grad = gradient

    def gradients(self) -> dict[str, torch.Tensor]:
        """What the optimizer will update by, by name; those that there are."""
        return {name: p.grad for name, p in self.masters.items() if p.grad is not None}

    def update(self, rule: OptimizerConfig, factor: torch.Tensor | None):
        """Multiply the gradients by `factor`, and make one step of `rule`.

        Everything is here, so one call does it: an owner that streams goes unit by unit.
        """
        gradients = list(self.gradients().values())
        if factor is not None and gradients:
            torch._foreach_mul_(gradients, factor)
        set_lr(self.optimizer, rule.lr)
        self.optimizer.step()

    def publish(self):
        """Bring the updated parameters to the ranks that need them: all are here."""

    def full_gradients(self) -> dict[str, torch.Tensor]:
        return self.world.full_gradients(self.gradients())

    def full_state(self) -> dict:
        kept = {n: self.optimizer.state[p] for n, p in self.masters.items()}
        return self.world.full_state(self.masters, {n: slots for n, slots in kept.items() if slots})

    @torch.no_grad()
    def load(self, state: Mapping):
        load(self.world.own, self.masters, state["model"])
        self.optimizer.state.clear()
        device = next(iter(self.masters.values())).device
        for name, slots in load_optimizer(self.world.own, state["optimizer"], device).items():
            if slots:
                self.optimizer.state[self.masters[name]] = slots

    def held(self) -> dict[tuple[str, str], int]:
        """As `Strategy.held`."""
        parameters = list(self.parameters.values())
        masters = [m for name, m in self.masters.items() if m is not self.values[name]]
        kinds = {
            "parameters": parameters,
            "master copies": masters,
            "gradients": [p.grad for p in [*parameters, *self.values.values(), *masters]],
            "optimizer": list(self.optimizer.state.values()),
        }
        return by_device(kinds)

    def close(self):
        """Give back what was taken from the system."""


def by_device(kinds: Mapping[str, list]) -> dict[tuple[str, str], int]:
    """Bytes by kind and device, without zeros; a storage counts once for each kind."""
    found = {}
    for kind, things in kinds.items():
        tensors = [t for thing in things for t in tensors_of(thing)]
        for device in dict.fromkeys(str(t.device) for t in tensors):
            here = bytes_of([t for t in tensors if str(t.device) == device])
            if here:
                found[kind, device] = here
    return found


def tensors_of(thing) -> list[torch.Tensor]:
    values = thing.values() if isinstance(thing, dict) else [thing]
    return [value for value in values if isinstance(value, torch.Tensor)]
