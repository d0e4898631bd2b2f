"""Expert parallelism as a transform: the experts of each mixture are cut over ranks.

Recipe(transform=expert_parallel, owner=Zero1)(config, 0, make_mesh(Layout(dp=2, ep=2)))

Ranks along "ep" have different sequences, as along "dp", and different experts. So the gradients of
all other parameters are partial sums over both axes. An expert is on some ranks only, and its
gradient is a partial sum over these.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import torch
from torch import nn

from helpers.comm.transport import GroupTransport
from helpers.models.experts.layer import Experts, Mixture
from helpers.parallel.mixture.exchange import collect, dispatch, route
from helpers.parallel.transform import Placed, plain, there
from helpers.state.part import Part
from helpers.state.placing import HasSeat, Seat, cut

AXES = ("ep",)


def expert_parallel(
    config,
    seed: int,
    mesh,
    dtype: torch.dtype,
    *,
    transport: Callable[..., GroupTransport] = GroupTransport,
    inner: Callable[..., Placed] = plain,
    axes: tuple[str, ...] = AXES,
) -> Placed:
    """Cut the experts over ranks with different tokens.

    Args:
        config, seed, mesh, dtype: as for any transform of a Recipe.
        transport: sends the rows; called with the process group of the axes.
        inner: the transform that makes the model, such as `tensor_parallel`: it may cut each
            expert, too.
        axes: of the ranks that have different experts. Any axes with different tokens will do: the
            experts' mesh may differ from attention's ("parallel folding"). Several axes need a
            mesh with `together=[axes]`.

    Raises:
        ValueError: there are no experts, or fewer than ranks; ranks along an axis have the same
            tokens.
    """
    placed = inner(config, seed, mesh, dtype)
    axes = mesh.layout.known(there(mesh.layout, axes))
    if mesh.layout.size(*axes) == 1:
        return placed
    if same := set(axes) - set(placed.sums):
        raise ValueError(
            f"ranks along {', '.join(sorted(same))} have the same tokens: cut experts over axes "
            f"with different tokens, such as {', '.join(placed.sums)}"
        )
    model, parts = placed.model, cut_experts(placed.model, placed.parts, mesh, axes)
    rows = transport(mesh.group(*axes))
    for module in model.modules():
        if isinstance(module, Mixture):
            shares = shares_of(module.router.settings.count, mesh, axes)
            module.experts = CutExperts(module.experts, rows, shares)
    return replace(placed, parts=parts)


def cut_experts(
    model: nn.Module, parts: dict[str, Part], seat: HasSeat, axes: Sequence[str]
) -> dict[str, Part]:
    """Give this rank its experts: the shapes of their parameters, and their parts."""
    found, ranks = dict(parts), seat.layout.size(*axes)
    mixtures = {name: m for name, m in model.named_modules() if isinstance(m, Mixture)}
    for path, mixture in mixtures.items():
        if (count := mixture.router.settings.count) < ranks:
            raise ValueError(f"{count} experts for {ranks} ranks: each rank needs an expert")
        for leaf, parameter in list(mixture.experts.named_parameters()):
            name = f"{path}.experts.{leaf}"
            part = found[name] = reduce(
                lambda part, axis: cut(seat, part, 0, axis), axes, parts[name]
            )
            own = parameter.new_empty(part.local_shape)
            setattr(mixture.experts, leaf, nn.Parameter(own, parameter.requires_grad))
    if not mixtures and getattr(model.config, "experts", None) is None:
        raise ValueError("the model has no experts to cut: leave the axes out")
    return found


def shares_of(experts: int, seat: HasSeat, axes: Sequence[str]) -> list[int]:
    """How many experts each rank along these axes has."""
    whole = Part(name="experts", shape=(experts,), holders=tuple(range(seat.layout.world_size)))
    members = (Seat(seat.layout, rank) for rank in seat.layout.group_of(seat.rank, *axes))
    parts = (reduce(lambda p, axis: cut(one, p, 0, axis), axes, whole) for one in members)
    return [part.numel for part in parts]


class CutExperts(nn.Module):
    """This rank's experts: rows for other ranks' experts go there, and return.

    Args:
        experts: of this rank.
        transport: of the rows.
        shares: how many experts each rank has.
    """

    def __init__(self, experts: Experts, transport: GroupTransport, shares: Sequence[int]):
        super().__init__()
        self.gate, self.up, self.down = experts.gate, experts.up, experts.down  # the same names
        self.multiply, self.transport, self.shares = experts.multiply, transport, shares

    def begin(self, rows: torch.Tensor, counts: torch.Tensor) -> Callable[[], torch.Tensor]:
        """As `Experts.begin`, of rows for all ranks' experts: they are on their way."""
        way = route(counts, self.shares, self.transport)
        came = dispatch(rows, way, self.transport)
        return lambda: collect(Experts.forward(self, came(), way.counts), way, self.transport)
