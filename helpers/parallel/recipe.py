"""A recipe for a strategy: its transform, engine, owner and precision."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Plain
from helpers.parallel.trainer import Trainer
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

    Call it like a strategy: `Recipe(…)(config, seed, mesh, dtype=…)` makes a Trainer.

    Attributes:
        transform: `transform(config, seed, seat, dtype)` returns this rank's module and its parts,
            like `plain`.
        engine: `engine(model, owner)`, like `InTurn`.
        owner: `owner(model, parts, mesh, *, rule, precision, dtype, device)`, like `Local`.
        precision: an object like `Plain`.
        name: for tables and figures.
    """

    transform: Callable = plain
    engine: Callable = InTurn
    owner: Callable = Local
    precision: Plain = PLAIN
    name: str = "Recipe"

    def __call__(self, config, seed: int = 0, mesh=None, **options) -> Trainer:
        return Trainer(self, config, seed, mesh, **options)

    @property
    def __name__(self) -> str:
        return self.name
