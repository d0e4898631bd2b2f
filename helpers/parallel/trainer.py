"""The training step of all our strategies. A recipe fills its four seams."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from helpers.comm.mesh import Layout, Mesh, make_mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.parallel.balance import Balance
from helpers.parallel.composed import composed
from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Plain
from helpers.parallel.strategy import Step, Strategy, check_batch, check_start
from helpers.parallel.transform import plain
from helpers.parallel.world import ALONE, GlobalSum
from helpers.plans.schedules import Schedule
from helpers.state.all_parts import AllParts
from helpers.state.placing import index, pending
from helpers.state.slicing import first_values

PLAIN = Plain()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The seams of a Trainer. The defaults make a single process.

    Call it like a strategy: `Recipe(…)(config, seed, mesh, dtype=…)` makes a Trainer. With a
    layout, the seams that are not named follow from it:

        Recipe(layout=Layout(pp=2, dp=2, tp=2), schedule=one_f_one_b)(config, micro_batches=4)

    Attributes:
        transform: `transform(config, seed, seat, dtype)` returns a Placed, like `plain`.
        engine: `engine(model, owner)`, like `InTurn`.
        owner: `owner(model, parts, mesh, *, sums, rule, precision, dtype, device)`, like `Local`.
        precision: an object like `Plain`.
        layout: fills the seams that are not named, as in `composed`; and makes the mesh, if the
            call has none. None leaves the seams as they are.
        schedule: of the layout's pipeline: a Schedule, or a function of (ranks, micro_batches) that
            makes one. Default: 1F1B.
        cuts: of the layout's pipeline: how many blocks each stage has. Default: cut by FLOPs.
        name: for tables and figures.

    Raises:
        TypeError: a seam is not callable, or `layout` is not a Layout.
        ValueError: from the call, if the mesh has another layout.
    """

    transform: Callable = plain
    engine: Callable = InTurn
    owner: Callable = Local
    precision: Plain = PLAIN
    layout: Layout | None = None
    schedule: Schedule | Callable[[int, int], Schedule] | None = None
    cuts: Sequence[int] | None = None
    name: str = "Recipe"

    def __post_init__(self):
        for seam in ("transform", "engine", "owner"):
            if not callable(getattr(self, seam)):
                raise TypeError(f"{seam} must be callable, not {getattr(self, seam)!r}")
        if not isinstance(self.layout, Layout | None):
            raise TypeError(f"layout must be a Layout, such as Layout(dp=2), not {self.layout!r}")
        if self.layout is None and (self.schedule is not None or self.cuts is not None):
            raise ValueError(
                "a schedule needs a layout with an axis pp, and so do cuts: Layout(pp=2)"
            )

    def __call__(self, config, seed: int = 0, mesh=None, **options) -> "Trainer":
        if self.layout is None:
            return Trainer(self, config, seed, mesh, **options)
        mesh = mesh or make_mesh(self.layout, options.get("device", "cpu"))
        if mesh.layout != self.layout:
            raise ValueError(f"the recipe is for {self.layout.title()}, not {mesh.layout.title()}")
        own = {seam: getattr(self, seam) for seam in ("transform", "engine", "owner")}
        m = options.pop("micro_batches", None)
        check_start(config, seed, 1 if m is None else m)
        seams, m = composed(mesh, self.schedule, m, cuts=self.cuts, **own)
        return Trainer(replace(self, **seams), config, seed, mesh, micro_batches=m, **options)

    @property
    def __name__(self) -> str:
        return self.name


class Trainer(Strategy):
    """Train a configuration's model by a recipe.

    Args:
        recipe: the four seams.
        config: `config.build(dtype, device, …)` builds the model, whose `loss(batch)` returns a sum
            and a count; `config.first_value(name, shape, seed)` makes the initial parameters.
        seed: of the initial parameters, and of dropout.
        mesh: the ranks; None for a single process. The transform knows along which axes they have
            different sequences: "dp", by default.
        dtype: of training; the recipe's precision may compute in another dtype.
        device: of the parameters.
        optimizer: the update rule.
        micro_batches: the number of parts into which each rank cuts its batch. The parts run one
            after another, which saves activation memory.

    Raises:
        TypeError, ValueError: as `check_start`, and as the recipe's seams raise.
    """

    def __init__(
        self,
        recipe: Recipe,
        config,
        seed: int = 0,
        mesh: Mesh | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        optimizer: OptimizerConfig | None = None,
        micro_batches: int = 1,
    ):
        if not isinstance(recipe, Recipe):
            raise TypeError(f"recipe must be a Recipe, not {recipe!r}")
        check_start(config, seed, micro_batches)
        self.config, self.mesh, self.device = config, mesh, torch.device(device)
        self.rule = optimizer or OptimizerConfig()
        self.precision, self.micro_batches = recipe.precision.start(), micro_batches
        seat = mesh or ALONE
        self.world_size = seat.layout.world_size
        placed = recipe.transform(config, seed, seat, self.precision.computes_in(dtype))
        self.data_rank = index(seat.layout, seat.rank, placed.data)
        self.data_size = math.prod(seat.layout.size(axis) for axis in placed.data)
        self.model, self.take = placed.model, placed.take
        self.precision.prepare(self.model)
        parts = placed.parts
        if placed.sums:
            parts = {name: pending(seat, part, *placed.sums) for name, part in parts.items()}
        seams = {"rule": self.rule, "precision": self.precision, "dtype": dtype, "device": device}
        seams["sums"] = placed.sums
        self.owner = recipe.owner(self.model, parts, mesh, **seams)
        make = lambda name, shape: config.first_value(name, shape, seed)  # noqa: E731
        first_values(self.owner.world.own, self.owner.masters, make)
        self.spread()
        self.engine = recipe.engine(self.model, self.owner)
        self.groups = groups_along(mesh, placed.sums)
        self.loss_groups = groups_along(mesh, placed.loss_sums)
        self.balance = Balance(self.model, self.owner, self.groups)
        lossy = [seam for seam in (self.precision, self.owner) if seam.lossy]
        self.lossy = ", and ".join(seam.lossy for seam in lossy)
        self.unsaved = self.precision.unsaved or self.owner.unsaved
        self.bound = max((seam.bound for seam in lossy), default=0.0)

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The model's parameters, by name."""
        return self.owner.parameters

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.owner.optimizer

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        check_batch(batch)
        batch = self.take(batch)
        tokens = GlobalSum(self.groups, self.device, batch.counted()).send()
        loss = GlobalSum(self.loss_groups, self.device)
        self.owner.rule = self.rule if lr is None else replace(self.rule, lr=lr)
        self.owner.begin()
        self.balance.begin()
        try:
            self.engine.step(batch.to(self.device).micro(self.micro_batches), tokens, loss)
            self.owner.complete()
            norm = self.owner.norm()
            total = tokens.wait()  # a GPU is read once in a step, and then updates on its own
            size, count = torch.stack([norm.to(total), total]).tolist()
        except BaseException:
            self.owner.skip()
            raise
        skipped = self.precision.skips(size)
        if skipped:
            self.owner.skip()
        else:
            self.balance.update()
            self.owner.update(self.owner.rule, self.rule.factor(norm))
            self.spread()
        self.precision.adapt(skipped=skipped)
        mean = loss.wait() / max(count, 1)
        return Step(loss=mean, grad_norm=norm, tokens=int(count), skipped=skipped)

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        check_batch(batch)
        values = self.engine.evaluate(self.take(batch).to(self.device))
        self.owner.rest()
        loss, count = (GlobalSum(self.loss_groups, self.device, float(v)).send() for v in values)
        return float(loss.wait()), int(count.wait())

    def full_gradients(self):
        return self.owner.full_gradients()

    def full_state(self):
        own = self.precision.state()
        return self.owner.full_state() | ({"precision": own} if own else {})

    @property
    def shapes(self):
        return self.parts.shapes

    def put(self, state):
        self.precision.load(state.get("precision", {}))  # the owner may write it to its files
        self.owner.load(state)
        self.spread()

    @property
    def parts(self) -> AllParts:
        """The parts of all ranks, as the optimizer has them."""
        return self.owner.world.parts

    def stored(self):
        return self.parts, self.owner.masters, self.owner.moments()

    def resume(self, tensors, moments, scale):
        self.precision.load(scale)
        self.owner.take(moments)
        self.spread()

    def scale_state(self):
        return self.precision.state()

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
    """This rank's group along each of these axes; none for a single process."""
    return [GroupTransport(mesh.group(axis)) for axis in axes if mesh is not None]
