"""A recipe for a strategy: its transform, engine, owner and precision."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Plain
from helpers.parallel.trainer import Trainer
from helpers.plans.schedules import Schedule
from helpers.state.part import Part
from helpers.state.placing import HasSeat, whole


def plain(
    config, seed: int, seat: HasSeat, dtype: torch.dtype
) -> tuple[torch.nn.Module, dict[str, Part]]:
    """Build the whole model on every rank: the transform that changes nothing.

    Returns:
        This rank's model on the device "meta", and the parts of its parameters by name.
    """
    model = config.build(dtype, "meta", seed=seed)
    parameters = dict(model.named_parameters())
    return model, {name: whole(seat, name, p.shape) for name, p in parameters.items()}


PLAIN = Plain()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The seams of a Trainer. The defaults make a single process.

    Call it like a strategy: `Recipe(…)(config, seed, mesh, dtype=…)` makes a Trainer. With a
    layout, the seams that are not named follow from it:

        Recipe(layout=Layout(pp=2, dp=2, tp=2), schedule=one_f_one_b)(config, micro_batches=4)

    Attributes:
        transform: `transform(config, seed, seat, dtype)` returns this rank's module and its parts,
            like `plain`.
        engine: `engine(model, owner)`, like `InTurn`.
        owner: `owner(model, parts, mesh, *, rule, precision, dtype, device)`, like `Local`.
        precision: an object like `Plain`.
        layout: fills the seams that are not named, as in `composed`; and makes the mesh, if the
            call has none. None leaves the seams as they are.
        schedule: of the layout's pipeline: a Schedule, or a function of (ranks, micro_batches) that
            makes one. Default: 1F1B.
        name: for tables and figures.

    Raises:
        ValueError: from the call, if the mesh has another layout.
    """

    transform: Callable = plain
    engine: Callable = InTurn
    owner: Callable = Local
    precision: Plain = PLAIN
    layout: Layout | None = None
    schedule: Schedule | Callable[[int, int], Schedule] | None = None
    name: str = "Recipe"

    def __post_init__(self):
        if self.schedule is not None and self.layout is None:
            raise ValueError("a schedule needs a layout with an axis pp: Layout(pp=2)")

    def __call__(self, config, seed: int = 0, mesh=None, **options) -> Trainer:
        if self.layout is None:
            return Trainer(self, config, seed, mesh, **options)
        from helpers.parallel.composed import composed  # imports this module

        mesh = mesh or make_mesh(self.layout, options.get("device", "cpu"))
        if mesh.layout != self.layout:
            raise ValueError(f"the recipe is for {self.layout.title()}, not {mesh.layout.title()}")
        recipe, micro_batches = composed(self, mesh, options.pop("micro_batches", None))
        return Trainer(recipe, config, seed, mesh, micro_batches=micro_batches, **options)

    @property
    def __name__(self) -> str:
        return self.name
