"""The plain owner: this rank holds parameters, gradients and optimizer state, and updates them."""

from collections.abc import Iterable, Mapping

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves

from helpers.comm.mesh import Mesh
from helpers.comm.transport import GroupTransport
from helpers.measure.memory import bytes_of
from helpers.parallel.optimizer import OUTER, OptimizerConfig, set_lr
from helpers.parallel.precision import Plain
from helpers.parallel.units import Unit
from helpers.parallel.world import World
from helpers.state.all_parts import AllParts
from helpers.state.part import Part
from helpers.state.pending import make_groups
from helpers.state.slicing import load, load_optimizer


class Local:
    """Hold everything on this rank. Other owners override parts of it.

    A step calls, in this order: `begin`; from the engine `before`, `gradient` and `after`;
    `complete`; `gradients`, for their norm; `update` and `publish`, or `skip`.

    Args:
        model: this rank's model, on the device "meta": its tensors have no memory yet.
        parts: of the model's parameters, by name, with the sums that are pending after a backward.
        mesh: None for a single process.
        sums: the mesh axes along which ranks have different targets. These ranks run the same
            program, so an owner may share the state of a parameter among those that hold it.
        rule, precision: of the update.
        dtype: of the tensors that the optimizer updates.
        device: of all tensors.

    Attributes:
        wants: the calls that an engine must make: "units" for `before` and `after`, "gradients"
            for `gradient`. An engine may omit the other calls.
        parameters: of the model, by name.
        values: the tensors that this rank updates: the parameters, or shards of them.
        masters: the tensors that the optimizer updates: the values, or master copies of them.
        rule: of this step's update, known before `begin`.
        world: the parts of the values, over all ranks.
        groups: the process groups of pending sums, by their ranks.
        replicas_of: name of a parameter -> the ranks along `sums` that hold it too; () if none do.
        lossy, bound, unsaved: as for Strategy.
    """

    wants: frozenset[str] = frozenset()
    lossy: str = ""
    unsaved: str = ""
    bound: float = 0.0

    def __init__(
        self,
        model: torch.nn.Module,
        parts: Mapping[str, Part],
        mesh: Mesh | None,
        *,
        sums: tuple[str, ...] = (),
        rule: OptimizerConfig,
        precision: Plain,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ):
        self.allocate(model, device)
        self.parameters = dict(model.named_parameters())
        self.precision, self.rule = precision, rule
        self.groups = {} if mesh is None else make_groups(mesh, AllParts.exchanged(parts))
        along = set(mesh.ranks(*sums)) if mesh and sums else set()
        self.replicas_of = {name: replicas(part, along) for name, part in parts.items()}
        self.values, held = self.hold(parts, mesh)
        self.masters = precision.masters(self.values, dtype)
        self.world = World(held, mesh, self.groups)
        trained = {name: p for name, p in self.masters.items() if p.requires_grad}
        self.optimizer = rule.make(trained, held)

    def allocate(self, model: torch.nn.Module, device: torch.device | str):
        """Allocate the memory of the model's parameters and buffers. Parameters have no values."""
        model.to_empty(device=device)

    def hold(self, parts: Mapping[str, Part], mesh: Mesh | None):
        """Choose the tensors that this rank updates. Returns `values` and their parts, by name."""
        return self.parameters, parts

    def begin(self):
        """Clear the last step's gradients."""
        for tensors in (self.parameters, self.values, self.masters):
            for tensor in tensors.values():
                tensor.grad = None

    def before(self, unit: Unit):
        """Prepare a unit's parameters: the engine will run its forward or backward next."""

    def gradient(self, name: str, last: bool):
        """Report that a micro-batch's gradient has been added to a parameter's `.grad`.

        The engine calls it, from a hook of autograd or after it computed the gradient itself.

        Args:
            last: whether it is this step's last micro-batch.
        """

    def after(self, unit: Unit):
        """Report that the engine has run a unit's forward, or its backward with all gradients."""

    def rest(self):
        """Free the memory that only a running forward or backward needs. Here this frees nothing.

        The engine's step, or an evaluation, has ended.
        """

    def complete(self):
        """Make all pending sums, so that every gradient is the plain model's."""
        self.sum_what_is_left(done=())
        self.collect(self.values)

    def collect(self, names: Iterable[str]):
        """Move these values' gradients to the tensors that the optimizer updates."""
        self.precision.collect(self.values, {name: self.masters[name] for name in names})

    def sum_what_is_left(self, done):
        """Make the pending sums, except over the groups `done`."""
        own = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        for name, gradient in self.world.complete(own, done).items():
            self.parameters[name].grad = gradient

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients that the optimizer will use, by name. Missing gradients are left out."""
        return {name: p.grad for name, p in self.masters.items() if p.grad is not None}

    def norm(self) -> torch.Tensor:
        """The norm of all ranks' gradients together: a scalar, the same on every rank."""
        return self.world.norm(self.gradients())

    def update(self, rule: OptimizerConfig, factor: torch.Tensor | None):
        """Multiply the gradients by `factor`, and make one step of `rule`."""
        gradients = list(self.gradients().values())
        if factor is not None and factor.is_cpu and factor == 1:
            factor = None  # saves a pass over all gradients; on a GPU, asking would make it wait
        if factor is not None and gradients:
            torch._foreach_mul_(gradients, factor)
        self.advance(rule)

    def advance(self, rule: OptimizerConfig):
        """Make one step of `rule` with the gradients as they are."""
        set_lr(self.optimizer, rule.lr)
        self.optimizer.step()

    def skip(self):
        """Make no update: a gradient is not finite, or the step has failed."""

    def publish(self):
        """Send the updated parameters to the ranks that need them. Here this sends nothing."""

    def full_gradients(self) -> dict[str, torch.Tensor]:
        return self.world.full_gradients(self.gradients())

    def full_state(self) -> dict:
        return self.world.full_state(self.masters, self.moments())

    def moments(self) -> dict[str, dict]:
        """The optimizer's state, by name and slot."""
        kept = {name: self.optimizer.state.get(m) for name, m in self.masters.items()}
        return {name: slots for name, slots in kept.items() if slots}

    @torch.no_grad()
    def load(self, state: Mapping):
        load(self.world.own, self.masters, state["model"])
        self.take(load_optimizer(self.world.own, state["optimizer"]))

    def take(self, moments: Mapping[str, Mapping]):
        """Use this state of the optimizer: with device and dtype of the master copies."""
        self.optimizer.state.clear()
        for name, slots in moments.items():
            master = self.masters[name]
            own = {k: like(master, k, v) for k, v in slots.items() if k not in OUTER}
            if own:
                self.optimizer.state[master] = own

    def held(self) -> dict[tuple[str, str], int]:
        """See `Strategy.held`."""
        return by_device(self.kinds())

    def kinds(self) -> dict[str, list]:
        """The tensors that this rank holds, by kind."""
        parameters = list(self.parameters.values())
        masters = [m for name, m in self.masters.items() if m is not self.values[name]]
        return {
            "parameters": parameters,
            "master copies": masters,
            "gradients": [p.grad for p in [*parameters, *self.values.values(), *masters]],
            "optimizer": list(self.optimizer.state.values()),
        }

    def close(self):
        """Release hooks and system resources."""


def replicas(part: Part, along: set[int]) -> tuple[int, ...]:
    """The group of a part's pending sum among these ranks; () if this rank alone has its numbers.

    An expert is on some of the ranks. What each rank has alone, no other rank has a gradient for.
    """
    return next((group for group in part.pending if along.issuperset(group)), ())


def said_by(transports: Iterable[GroupTransport]) -> tuple[str, float]:
    """Why results of an owner with these transports are lossy, and their bound."""
    lossy = [one for one in transports if getattr(one, "lossy", "")]
    return (lossy[0].lossy, max(one.bound for one in lossy)) if lossy else ("", 0.0)


def like(master: torch.Tensor, slot: str, value):
    """The value with the master's device; a moment as the master: its dtype, as PyTorch loads it.

    A whole moment of a DTensor gets its placements.
    """
    if not isinstance(value, torch.Tensor):
        return value
    moment = slot != "step" and value.shape == master.shape
    value = value.to(master.device, master.dtype if moment else value.dtype)
    if not moment or not isinstance(master, DTensor):
        return value
    return distribute_tensor(value, master.device_mesh, master.placements)


def by_device(kinds: Mapping[str, list]) -> dict[tuple[str, str], int]:
    """Sum bytes by kind and device, without zeros. A storage counts once per kind."""
    found = {}
    for kind, things in kinds.items():
        tensors = [t for t in tree_leaves(things) if isinstance(t, torch.Tensor)]
        for device in dict.fromkeys(str(t.device) for t in tensors):
            here = bytes_of([t for t in tensors if str(t.device) == device])
            if here:
                found[kind, device] = here
    return found
