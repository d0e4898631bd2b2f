"""A Mesh: the process groups of a Layout, on running ranks."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from helpers.comm.layout import Layout
from helpers.runtime.proof import prove


@dataclass(frozen=True, eq=False)
class Mesh:
    """A layout on running ranks, from the view of one rank. Made by `make_mesh`.

    Attributes:
        layout: the place of every rank.
        rank: this rank, in the world.
        device_mesh: PyTorch's own mesh, for FSDP2, DTensor and others.
        together: the groups along several axes, as requested from `make_mesh`.
    """

    layout: Layout
    rank: int
    device_mesh: DeviceMesh
    together: dict[tuple[str, ...], dist.ProcessGroup]

    def group(self, *axes: str) -> dist.ProcessGroup:
        """Return the process group of the ranks that share these axes with this rank.

        Raises:
            ValueError: an axis is not in the layout, or no group along these axes together was
                requested.
        """
        axes = self.layout.known(axes)
        if len(axes) == 1:
            return self.device_mesh.get_group(axes[0])
        if axes == self.layout.axes:
            return dist.group.WORLD
        if axes not in self.together:
            # Making the group here could hang: every rank of the world would have to make it too.
            raise ValueError(f"{axes} have no common group: use make_mesh(…, together=[{axes}])")
        return self.together[axes]

    def ranks(self, *axes: str) -> list[int]:
        """Return the members of that group, as ranks of the world."""
        return self.layout.group_of(self.rank, *axes)

    def size(self, *axes: str) -> int:
        """Return the size of that group."""
        return self.layout.size(*axes)

    def index(self, *axes: str) -> int:
        """Return this rank's place in that group."""
        return self.ranks(*axes).index(self.rank)

    def __repr__(self):
        place = ", ".join(f"{a}={i}" for a, i in self.layout.coordinates(self.rank).items())
        return f"rank {self.rank} ({place}) of {self.layout!r}"


def make_mesh(
    layout: Layout,
    device: torch.device | str = "cpu",
    together: Iterable[Iterable[str]] = (),
) -> Mesh:
    """Make the process groups of every axis. Every rank calls it, with the same arguments.

    Groups cost memory and connections. So make a mesh once; on a Cluster keep it in `worker.state`.

    Args:
        layout: the place of every rank of the world.
        device: the device of the tensors to communicate: `worker.device`.
        together: axes that need a common group, besides a group each: `[("dp", "cp")]`.

    Raises:
        ValueError: the product of the sizes is not the number of ranks; an unknown axis.
        RuntimeError: no process group is initialized; another process answered in place of a rank.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "there are no ranks: call make_mesh inside a function that `launch` runs"
        )
    ranks = dist.get_world_size()
    if layout.world_size != ranks:
        product = layout.world_size
        raise ValueError(
            f"the product of the sizes of {layout.title()} is {product}: it must be {ranks}, the "
            "number of ranks"
        )
    several = [layout.known(axes) for axes in together]  # check the axes before making any group
    device_mesh = init_device_mesh(
        torch.device(device).type, layout.shape, mesh_dim_names=layout.axes
    )
    made = {}
    for axes in several:
        made[axes], _ = dist.new_subgroups_by_enumeration(
            layout.groups(*axes), group_desc="mesh_" + "_".join(axes)
        )
    for group in (*map(device_mesh.get_group, layout.axes), *made.values()):
        prove(group)
        if not on_gloo(group, device):
            connect(group, device)
    return Mesh(layout, dist.get_rank(), device_mesh, made)


def on_gloo(group: dist.ProcessGroup, device: torch.device | str) -> bool:
    """Whether gloo moves the tensors of this device within the group."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return backends.get(torch.device(device).type) == "gloo"


def connect(group: dist.ProcessGroup, device: torch.device | str):
    """Let NCCL connect the ranks of a group. Every rank of the group calls it.

    NCCL connects the ranks in a group's first collective, and until then the call blocks: also a
    call with `async_op=True`. So the first one may not be a call that some ranks make early.
    """
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        # The group's own method: a count of the program's collectives must not see this one.
        group.allreduce([torch.zeros(1, device=device)]).wait()
