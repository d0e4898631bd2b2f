"""The transform seam: what a transform returns, and the transform that changes nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import Examples
from helpers.state.part import Part
from helpers.state.placing import HasSeat, whole

DATA = ("dp", "ep")  # the usual axes along which ranks have different sequences


def same(batch: Examples) -> Examples:
    """Take the whole batch."""
    return batch


@dataclass(frozen=True, kw_only=True)
class Placed:
    """This rank's model, and what its transform knows of it. Trainer and owners read it.

    Attributes:
        model: on the device "meta"; it has `loss(batch) -> (sum, count)`.
        parts: of its parameters, by name. Their pending sums are those of the transform alone: the
            sums over `sums` are added to every part.
        data: the mesh axes along which ranks have different examples of the global batch.
        sums: the axes along which ranks have different targets: `data`, and those along which
            `take` cuts. Gradients, and numbers of targets, are partial sums over them.
        loss_sums: the axes along which the loss is a partial sum. On other axes, ranks have the
            same loss.
        take: `take(batch)` returns what this rank computes of a batch of `data`'s: its tokens.
    """

    model: torch.nn.Module
    parts: Mapping[str, Part]
    data: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    loss_sums: tuple[str, ...] = ()
    take: Callable[[Examples], Examples] = same

    def __iter__(self) -> Iterator:
        """Yield the model and its parts: `model, parts = transform(config, 0, seat, dtype)`."""
        return iter((self.model, self.parts))


def plain(
    config, seed: int, seat: HasSeat, dtype: torch.dtype, *, data: tuple[str, ...] = DATA
) -> Placed:
    """Build the whole model on every rank.

    Args:
        data: the axes along which ranks have different examples: one, several, or nested ones
            (node, local). Axes that the mesh does not have count as size 1.
    """
    model = config.build(dtype, "meta", seed=seed)
    parts = {name: whole(seat, name, p.shape) for name, p in model.named_parameters()}
    axes = there(seat.layout, data)
    return Placed(model=model, parts=parts, data=axes, sums=axes, loss_sums=axes)


def there(layout: Layout, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the axes that the layout has."""
    return tuple(axis for axis in axes if axis in layout.axes)
