"""Operations over all ranks: pending sums of parts, the norm, whole tensors; sums of a number."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from helpers.comm.mesh import Layout, Mesh
from helpers.comm.transport import GroupTransport, Work
from helpers.state.all_parts import AllParts
from helpers.state.full_state import full_gradients, full_state
from helpers.state.part import Part
from helpers.state.pending import Groups, complete, global_norm, make_groups
from helpers.state.placing import Seat

Tensors = Mapping[str, torch.Tensor]
ALONE = Seat(Layout(dp=1), rank=0)  # the seat of a single process


class World:
    """A model's layout over all ranks.

    If every rank holds the whole model, each rank uses its own tensors and sends nothing. So the
    result shows whether a replica has drifted.

    Args:
        parts: this rank's parts, by its own names, with the sums that are pending after a backward.
        mesh: None for a single process. Every rank makes a World, with the same mesh.
        groups: of the pending sums, by their ranks; None: made here.

    Attributes:
        own: this rank's parts, with their pending sums.
        parts: the parts of all ranks, with no sum pending.
        everywhere: whether every rank holds the whole model.
    """

    def __init__(self, parts: Mapping[str, Part], mesh: Mesh | None, groups: Groups | None = None):
        self.own = dict(parts)
        before = AllParts([parts]) if mesh is None else AllParts.exchanged(parts)
        if groups is None:
            groups = {} if mesh is None else make_groups(mesh, before)
        self.groups, self.parts = groups, before.completed
        shapes = before.shapes
        self.everywhere = all(
            {part.name for part in held.values() if part.local_shape == part.shape} == shapes.keys()
            for held in before.ranks
        )

    def complete(self, gradients: Tensors, done: Iterable[tuple[int, ...]]) -> Tensors:
        """Make the pending sums, except those over the groups `done`, which are made already."""
        done = set(done)
        left = {
            key: part.completed(*made) if (made := done & set(part.pending)) else part
            for key, part in self.own.items()
        }
        if not any(part.pending for part in left.values()):
            return gradients
        device = next(iter(gradients.values())).device if gradients else "cpu"
        every = {key: gradients.get(key) for key in left}
        _, summed = complete(left, every, self.groups, device)
        return {key: gradient for key, gradient in summed.items() if gradient is not None}

    def norm(self, gradients: Tensors) -> torch.Tensor:
        """Compute the norm of all the plain model's gradients: a scalar, the same on every rank."""
        if not self.everywhere:
            return global_norm(self.parts, gradients)
        if not gradients:
            return torch.zeros(())
        tensors = list(gradients.values())
        wide = torch.promote_types(tensors[0].dtype, torch.float32)
        norms = torch._foreach_norm(tensors, 2, dtype=wide)
        return torch.linalg.vector_norm(torch.stack(norms))

    def full_gradients(self, gradients: Tensors) -> dict[str, torch.Tensor]:
        """Gather every gradient whole, by plain name; copies."""
        if self.everywhere:
            return {self.own[key].name: g.detach().clone() for key, g in gradients.items()}
        every = {key: gradients.get(key) for key in self.own}
        return full_gradients(self.parts, every)

    def full_state(self, tensors: Tensors, kept: Mapping[str, Mapping]) -> dict:
        """Gather parameters and optimizer state whole, by plain name; copies."""
        if not self.everywhere:
            return full_state(self.parts, tensors, kept)
        return {
            "model": {self.own[key].name: t.detach().clone() for key, t in tensors.items()},
            "optimizer": {
                self.own[key].name: {slot: copied(value) for slot, value in slots.items()}
                for key, slots in kept.items()
            },
        }


def copied(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


class GlobalSum:
    """A number's sum on this rank, then over ranks while they compute: group after group.

    Args:
        groups: none for a single process. The sum over the first starts with `send`, the others
            follow in `wait`.
    """

    def __init__(
        self, groups: Sequence[GroupTransport], device: torch.device | str, start: float = 0
    ):
        self.groups = list(groups)
        self.total = torch.tensor([start], dtype=torch.float64, device=device)
        self.work: Work | None = None

    def add(self, number: torch.Tensor):
        """Add this rank's number, before `send`."""
        self.total += number

    def send(self) -> "GlobalSum":
        """Start the sum over the ranks. After this, do not call `add`."""
        if self.groups:
            self.work = self.groups.pop(0).all_reduce(self.total)
        return self

    def wait(self) -> torch.Tensor:
        """Wait for the sum over all ranks: a scalar in float64."""
        while self.work is not None:
            self.work.wait()
            self.work = self.groups.pop(0).all_reduce(self.total) if self.groups else None
        return self.total[0]
