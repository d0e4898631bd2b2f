"""ZeRO stage 3: also of the parameters, each rank has only 1/N between their uses."""

from collections.abc import Iterator

import torch

from helpers.parallel.units import Unit, in_backward, units
from helpers.parallel.zero.refusals import marks
from helpers.parallel.zero.row import Gathered
from helpers.parallel.zero.stage2 import Zero2


class Zero3(Zero2):
    """Hold 1/N of everything. Gather a unit's parameters just before they are used.

    Before a unit's forward and before its backward, its parameters are gathered; after it, they are
    freed. While a unit computes, the next unit is gathered: one unit ahead, as soon as a first
    micro-batch has shown the order of the units. A rank sends 3 (N-1)/N bytes per byte of
    parameters for each micro-batch.

    No rank ever has memory for all parameters, not even for their first values.

    A unit whose parameters other modules use too (a tied embedding) stays gathered from its first
    use to the end of the step. So does a unit with frozen parameters, until the next unit's
    backward begins.

    Args:
        reshard_after_forward: False: keep a unit gathered from its forward to its backward. A rank
            then sends as much as in stage 2, and holds all parameters at the end of the forward.
        in_flight: as for Zero2. The default is 0; it is 1 if units are kept, because the backward
            then frees parameters while it adds gradients.
        others, raises: as for Zero1.
    """

    stage = 3

    def __init__(
        self,
        model,
        parts,
        mesh,
        *,
        reshard_after_forward: bool = True,
        in_flight: int | None = None,
        **options,
    ):
        self.reshard_after_forward = reshard_after_forward
        if in_flight is None:
            in_flight = 0 if reshard_after_forward else 1
        # whether in the backward -> units in the order in which they first ran
        self.order: dict[bool, list[str]] = {False: [], True: []}
        self.lingering: set[str] = set()  # units to free when another unit's backward begins
        self.hooks: list = []
        self.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        super().__init__(model, parts, mesh, in_flight=in_flight, **options)
        self.fully_trained = {
            unit.name: all(p.requires_grad for p in unit.parameters.values())
            for unit in units(model)
        }
        self.watch_shared()

    # the layout

    def allocate(self, model, device):
        """Allocate the buffers only. Parameters get their memory when they are gathered."""
        empty: dict[int, torch.nn.Parameter] = {}
        for module in model.modules():
            for leaf, p in module._parameters.items():
                if p is not None:
                    nothing = torch.empty(0, dtype=p.dtype, device=device)
                    made = torch.nn.Parameter(nothing, requires_grad=p.requires_grad)
                    module._parameters[leaf] = empty.setdefault(id(p), made)
        model.to_empty(device=device)

    def shards(self, parameters):
        return True

    def parameter_memory(self, unit, parameters, transport):
        shapes = {name: self.shapes[name] for name in parameters}
        return Gathered(parameters, shapes, transport, kept=self.used_outside(unit))

    def used_outside(self, unit: str) -> bool:
        """Whether modules outside of a unit use its parameters."""
        return next(self.outside(unit), None) is not None

    def outside(self, unit: str) -> Iterator[torch.nn.Module]:
        """Yield the modules outside of a unit that have one of its parameters."""
        inside = self.model.get_submodule(unit)
        own = {id(p) for p in inside.parameters()}
        within = set(inside.modules())
        for module in self.model.modules():
            if module not in within and own & {id(p) for p in module._parameters.values()}:
                yield module

    def watch_shared(self):
        """Gather a unit before modules outside of it use its parameters."""
        for unit in dict.fromkeys(self.unit_of):
            for module in self.outside(unit):
                hook = module.register_forward_pre_hook(lambda *_, unit=unit: self.use(unit))
                self.hooks.append(hook)

    # a step

    def before(self, unit: Unit):
        backward = in_backward()
        if backward:
            for name in self.lingering - {unit.name}:
                self.free(name)
            self.lingering &= {unit.name}
            if not any(p.requires_grad for p in unit.parameters.values()):
                self.lingering.add(unit.name)  # no gradient will end its backward
            self.land(self.in_flight)  # free what has been sent before another unit is gathered
        self.use(unit.name)
        self.gather_ahead(unit.name, self.order[backward])

    def gather_ahead(self, unit: str, order: list[str]):
        """Start to gather the next unit, if it is known."""
        if unit not in order:
            order.append(unit)
        ahead = order.index(unit) + 1
        if ahead < len(order):
            self.gather(order[ahead])

    def after(self, unit: Unit):
        backward = in_backward() or bool(self.filled(unit.name))
        if backward and not self.fully_trained[unit.name]:
            self.lingering.add(unit.name)
        elif backward or self.reshard_after_forward or not torch.is_grad_enabled():
            self.free(unit.name)
        super().after(unit)

    def gather(self, unit: str):
        for i in self.rows_of[unit]:
            row = self.rows[i]
            if row.state == "freed":
                row.gather()
                self.note(i, "gathered", "gathering", row.whole)

    def use(self, unit: str):
        self.gather(unit)
        for i in self.rows_of[unit]:
            self.rows[i].use()
            self.note(i, "gathered", "in use", self.rows[i].whole)

    def free(self, unit: str):
        for i in self.rows_of[unit]:
            if not self.rows[i].kept:
                self.free_row(i)

    def free_row(self, i: int):
        if self.rows[i].state != "freed":
            self.rows[i].free()
            self.note(i, "gathered", "freed")

    def rest(self):
        for i in range(len(self.rows)):
            self.free_row(i)
        self.lingering.clear()

    def publish(self):
        """Send nothing: the next gather sends the updated shards."""
        self.marks = marks(self.parameters)

    def close(self):
        for hook in self.hooks:
            hook.remove()
        super().close()
