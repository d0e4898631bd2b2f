"""The layout in which parts are stored: as they lie where DTensor can say it, else in even rows."""

from collections.abc import Mapping

import torch

from helpers.comm.mesh import Layout, Mesh, make_mesh
from helpers.state.all_parts import AllParts
from helpers.state.dtensor import as_dtensor, even, placements
from helpers.state.part import Cut, Part
from helpers.state.reshard import existing, reshard


class Storage:
    """Turns this rank's tensors into those that are stored, by plain name, and back.

    Tensors that DTensor can say are stored as they lie, without a copy. The others (flat ranges,
    chosen or uneven cuts) are resharded to even rows over all ranks. Every rank of the world makes
    one, and calls its methods.
    """

    def __init__(self, mesh: Mesh, parts: AllParts):
        said = [name for name in parts.shapes if sayable(mesh.layout, parts, name)]
        self.rank, self.device = mesh.rank, mesh.device_mesh.device_type
        lie, others = parts.named(said), parts.named(parts.shapes.keys() - set(said))
        self.layouts = [(mesh, lie, lie)]  # mesh of the DTensors, parts, and how they are stored
        if others.shapes:
            rows = make_mesh(Layout(rows=len(parts.ranks)), self.device)
            self.layouts.append((rows, others, in_rows(others)))

    def stored(self, local: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What this rank stores, by plain name: DTensors, or whole tensors.

        Raises:
            ValueError: as `existing`.
        """
        found = {}
        for mesh, parts, lying in self.layouts:
            mine = {key: local[key] for key in parts.ranks[self.rank] if key in local}
            if lying is parts:
                existing(parts, mine)
            else:
                mine = reshard(parts, mine, lying, device=self.device)
            for key, part in lying.ranks[self.rank].items():
                if key in mine:
                    found[part.name] = as_dtensor(mesh, part, mine[key])
        return found

    def empty(self, dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
        """Room for what is stored of these plain names: DTensors, not filled."""
        return {
            part.name: as_dtensor(mesh, part, self.room(part, dtypes[part.name]))
            for mesh, _, lying in self.layouts
            for part in lying.ranks[self.rank].values()
            if part.name in dtypes
        }

    def room(self, part: Part, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(part.local_shape, dtype=dtype, device=self.device)

    def local(self, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """This rank's tensors, by key, from what is stored. The same names on all ranks that store
        some of them."""
        found = {}
        for _, parts, lying in self.layouts:
            mine = {
                key: getattr(stored[part.name], "to_local", lambda own=stored[part.name]: own)()
                for key, part in lying.ranks[self.rank].items()
                if part.name in stored
            }
            found |= mine if lying is parts else reshard(lying, mine, parts, device=self.device)
        return found


def sayable(layout: Layout, parts: AllParts, name: str) -> bool:
    """Whether DTensor can say a tensor on every rank. A rank has one DTensor of a name at most."""
    for rank, keys in enumerate(parts.keys):
        here = [parts.ranks[rank][key] for key in keys.get(name, ())]
        if len(here) > 1 or any(placements(layout, rank, part) is None for part in here):
            return False
    return True


def in_rows(parts: AllParts) -> AllParts:
    """Every tensor cut along its first dim over all ranks, as DTensor cuts; one without dims is
    whole on all of them."""
    world = Layout(rows=len(parts.ranks))
    ranks = []
    for rank in range(world.world_size):
        own = {}
        for name, shape in parts.shapes.items():
            if shape:
                ranges = even(world, rank, ("rows",), shape[0])
                cut = Cut(dim=0, axes=("rows",), ranges=ranges)
                own[name] = Part(name=name, shape=shape, cuts=[cut], holders=(rank,))
            else:
                everyone = tuple(range(world.world_size))
                own[name] = Part(name=name, shape=shape, holders=everyone)
        ranks.append(own)
    return AllParts(ranks)
