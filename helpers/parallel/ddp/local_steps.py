"""Replicas that wait: each makes H updates alone, then all average. Local SGD and DiLoCo."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from helpers.comm.transport import GroupTransport, coalesced
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.offload.front import Moved
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import like, said_by
from helpers.parallel.units import units
from helpers.parallel.world import GlobalSum
from helpers.plans.local_steps import Rounds
from helpers.precision.blocks import Blocks
from helpers.state.facts import carrier
from helpers.state.pending import sum_over
from helpers.state.placing import pending

# As for Strategy, of the plain mean. Measured as for `helpers.parallel.precision.BOUNDS`, with five
# seeds and AdamW: 0.555 to 0.572, the same for H = 2 and H = 5, because AdamW's first steps have
# full length for every gradient. An outer momentum makes longer steps than one process, 7 times in
# the end with DiLoCo's: no bound holds.
BOUND = 0.75


class LocalSteps(Moved, Replicated):
    """Replicas along `axis` update alone, and average every H updates.

    A replica may be several ranks, which sum gradients over the other axes of `sums` in each step,
    as in Replicated. A replica's gradient is N times its share of the global mean's gradient. So
    the replicas' mean is the global gradient, even if their shares are unequal.

    The **anchor** is the last average. The **outer gradient** is the anchor minus the replicas'
    mean. The outer optimizer, SGD with Nesterov momentum, updates the anchor by it, and all
    replicas go on from there. By default the new anchor is the mean: Local SGD. Moments of the
    inner optimizer stay on their replica.

    A step reports the loss of all replicas, and the root mean square of their gradients' norms, by
    which all clip alike. So each step still sends three numbers of 8 bytes: the count of targets,
    the loss and the norm. With H = 1, the plain mean, "sgd" and no clipping, this is data parallel,
    and exact.

    A state has the replicas' mean of parameters and moments, and the anchor. `full_state` does not
    change the replicas. `save` does, outside of the rounds: all go on from the means, as a restored
    run does.

    Args:
        model, parts, mesh, sums, rule, precision, dtype, device, options: as for Replicated.
        every: H.
        axis: of the mesh, one of `sums`; N ranks.
        outer_lr, outer_momentum: of the outer optimizer. DiLoCo has 0.7 and 0.9.
        fragments: F. Unit i is in fragment i mod F; each fragment has its own phase: see `Rounds`.
        wire: the format of outer gradients in messages; None for that of the masters. In a dtype
            they are also added: in bfloat16, a mean is off by N/256 of the replicas' mean magnitude
            at most. In `Blocks`, each replica gets those of all, and adds them unrounded.
        transport: makes the transport of outer gradients from a process group. It may be lossy.

    Attributes:
        rounds: which fragment is averaged when.
        updates: how many updates have been made.
        names_of: of each fragment's trained parameters.

    Raises:
        ValueError: there is no such axis in `sums`; only some of its ranks hold a parameter (an
            expert).

    Sources: see `helpers.plans.local_steps`.
    """

    def __init__(
        self,
        model,
        parts,
        mesh,
        *,
        every: int,
        axis: str = "dp",
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        fragments: int = 1,
        wire: torch.dtype | Blocks | None = None,
        transport: Callable[..., GroupTransport] = GroupTransport,
        sums=(),
        rule,
        **options,
    ):
        self.rounds = Rounds(every=every, fragments=fragments)
        if mesh is None or axis not in sums:
            raise ValueError(f"replicas have different targets along {sums}, not along {axis!r}")
        inside = tuple(other for other in sums if other != axis)
        parts = {name: alone(mesh, part, axis, inside) for name, part in parts.items()}
        super().__init__(model, parts, mesh, sums=inside, rule=rule, **options)
        self.outer, self.wire = transport(mesh.group(axis)), wire
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        self.updates, self.anchors, self.momenta = 0, {}, {}
        self.trained = {name: m for name, m in self.masters.items() if m.requires_grad}
        self.names_of = [[] for _ in range(fragments)]
        for i, unit in enumerate(units(model)):
            self.names_of[i % fragments] += [n for n in unit.parameters if n in self.trained]
        plain = every == 1 and (outer_lr, outer_momentum, wire) == (1, 0, None)
        if not (plain and rule.rule == "sgd" and rule.clip is None):
            self.lossy = f"replicas average every {every} updates"
            self.bound = BOUND if (outer_lr, outer_momentum) == (1, 0) else math.inf
        elif not self.lossy:
            self.lossy, self.bound = said_by([self.outer])

    def begin(self):
        super().begin()
        for name, master in self.trained.items():
            if name not in self.anchors:  # the first step, or a state without anchors was loaded
                self.anchors[name] = master.detach().clone()

    def sum_what_is_left(self, done):
        super().sum_what_is_left(done)
        own = [p.grad for p in self.parameters.values() if p.grad is not None]
        if own:
            torch._foreach_mul_(own, self.outer.size)

    def norm(self):
        own = self.gradients()
        device = next((gradient.device for gradient in own.values()), "cpu")
        found = GlobalSum([GroupTransport()], carrier(None, device))
        for name, gradient in own.items():  # each holder has the square of its replica
            found.add(gradient.double().square().sum() / len(self.world.own[name].holders))
        return found.send().wait().sqrt()

    def update(self, rule: OptimizerConfig, factor: torch.Tensor | None):
        super().update(rule, factor)
        self.updates += 1
        for fragment in self.rounds.due(self.updates):
            if self.names_of[fragment]:
                self.average(self.names_of[fragment])

    @torch.no_grad()
    def average(self, names: list[str]):
        """Update the anchors of these parameters by their outer gradients; go on from there."""
        row = torch.cat([(self.anchors[n] - self.masters[n]).view(-1) for n in names])
        mean = self.summed(row).to(row).div_(self.outer.size)
        anchors = [self.anchors[name] for name in names]
        parts = mean.split([anchor.numel() for anchor in anchors])
        for name, anchor, own in zip(names, anchors, parts, strict=True):
            gradient = own.view(anchor.shape)
            if self.outer_momentum:
                momentum = self.momenta.setdefault(name, torch.zeros_like(anchor))
                momentum.mul_(self.outer_momentum).add_(gradient)
                gradient = gradient + self.outer_momentum * momentum
            self.masters[name].copy_(anchor.sub_(gradient, alpha=self.outer_lr))

    def summed(self, row: torch.Tensor) -> torch.Tensor:
        """The sum over the replicas of a row, as `wire` has it."""
        device = carrier(self.outer.group, row.device)
        if isinstance(self.wire, Blocks):
            own = self.wire.encode(row).to(device)
            every = own.new_empty(self.outer.size, own.numel())
            self.outer.all_gather(every, own).wait()
            return sum(self.wire.decode(one, torch.empty_like(row, device=device)) for one in every)
        sent = row.to(device, self.wire or row.dtype)
        self.outer.all_reduce(sent).wait()
        return sent

    # state: the mean of the replicas

    @torch.no_grad()
    def mean(self, tensors: Mapping) -> dict:
        """The replicas' mean of each tensor; copies."""
        found = {key: tensor.detach().clone() for key, tensor in tensors.items()}
        for together in coalesced(found.values()):
            sum_over(self.outer.group, together)
            torch._foreach_div_(together, self.outer.size)
        return found

    def full_gradients(self):
        return self.world.full_gradients(self.mean(self.gradients()))

    def full_state(self):
        return self.world.full_state(self.masters | self.mean(self.trained), self.mean_moments())

    @torch.no_grad()
    def moments(self):
        """Average parameters and moments, for a checkpoint, which reads the masters too."""
        for name, mean in self.mean(self.trained).items():
            self.masters[name].copy_(mean)
        self.precision.write(self.masters, self.values)
        moments = self.mean_moments()
        self.take(moments)
        return moments

    def mean_moments(self) -> dict[str, dict]:
        """The inner optimizer's mean state, with the outer optimizer's, by name and slot."""
        kept = {name: dict(slots) for name, slots in super().moments().items()}
        every = {(name, slot): v for name, slots in kept.items() for slot, v in slots.items()}
        tensors = {key: v for key, v in every.items() if isinstance(v, torch.Tensor)}
        for (name, slot), value in self.mean(tensors).items():
            kept[name][slot] = value
        for name, anchor in self.anchors.items():
            own = {"anchor": anchor, "updates": torch.tensor(float(self.updates))}
            if name in self.momenta:
                own["outer_momentum"] = self.momenta[name]
            kept[name] = kept.get(name, {}) | own
        return kept

    def take(self, moments):
        inner = {name: dict(slots) for name, slots in moments.items()}

        def outer(slot):
            own = {name: slots.pop(slot) for name, slots in inner.items() if slot in slots}
            return {name: like(self.masters[name], slot, value) for name, value in own.items()}

        self.anchors, self.momenta = outer("anchor"), outer("outer_momentum")
        self.updates = max(map(int, outer("updates").values()), default=0)
        super().take(inner)

    def kinds(self):
        kinds = super().kinds()
        kinds["optimizer"] = [*kinds["optimizer"], self.anchors, self.momenta]
        return kinds

    def close(self):
        super().close()
        self.outer.close()


diloco = partial(LocalSteps, outer_lr=0.7, outer_momentum=0.9)


def alone(mesh, part, axis: str, inside: tuple[str, ...]):
    """A part whose gradient is summed inside a replica only, over the axes `inside`."""
    if not set(mesh.ranks(axis)) <= set(part.holders):
        raise ValueError(
            f"{part.name} is only on {len(part.holders)} ranks, and not on all along {axis!r}: "
            "ranks that step alone cannot share experts. Name another axis"
        )
    along = set(mesh.ranks(axis, *inside))
    left = [group for group in part.pending if not along.issuperset(group)]
    return pending(mesh, replace(part, pending=left), *inside)
