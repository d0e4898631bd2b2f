"""Where tensors lie in a padded row that ranks share in equal shards, and the memory of parameters.

The parameters of a row are whole on every rank, or gathered only when they are used.

P is the number of the row's parameters, padding included; N is the number of ranks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from helpers.comm.regions import Ready
from helpers.comm.transport import GroupTransport, Work
from helpers.state.part import Range


@dataclass(frozen=True)
class Row:
    """Tensors one after the other in a row of numbers, cut into a shard for each rank.

    The row is padded at its end, so that all shards have the same size. A shard's limit may be in
    the middle of a tensor.

    Attributes:
        sizes: name -> how many numbers the tensor has.
        ranks: N, how many ranks share the row.
    """

    sizes: Mapping[str, int]
    ranks: int

    @property
    def shard(self) -> int:
        """How many numbers a shard has, padding included."""
        return -(-sum(self.sizes.values()) // self.ranks)

    @property
    def size(self) -> int:
        """How many numbers the row has, padding included."""
        return self.shard * self.ranks

    @cached_property
    def places(self) -> dict[str, Range]:
        """name -> (start, stop) of the tensor in the row."""
        found, stop = {}, 0
        for name, size in self.sizes.items():
            found[name] = stop, stop + size
            stop += size
        return found

    def held(self, name: str, rank: int) -> Range:
        """(start, stop) of the tensor's numbers in a rank's shard; (0, 0) if there are none."""
        start, stop = self.places[name]
        first, last = max(start, rank * self.shard), min(stop, (rank + 1) * self.shard)
        return (first - start, last - start) if first < last else (0, 0)

    def inside(self, name: str, rank: int) -> slice:
        """The place of these numbers in the rank's shard."""
        start, stop = self.held(name, rank)
        first = self.places[name][0] + start - rank * self.shard
        return slice(first, first + stop - start) if start < stop else slice(0, 0)


class Whole:
    """Every rank has all parameters of the row. After an update, all ranks gather the shards.

    Args:
        parameters: by name, all of one dtype and device, with memory of their own.
        row: for other places than one parameter after the other.

    Attributes:
        row: where the parameters lie.
        shard: this rank's numbers, (P/N,).
        buffers: the memory of the parameters on this rank.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        transport: GroupTransport,
        row: Row | None = None,
    ):
        self.parameters, self.transport = dict(parameters), transport
        sizes = {name: p.numel() for name, p in parameters.items()}
        self.row = row or Row(sizes, transport.size)
        first = next(iter(parameters.values()))
        self.whole = transport.empty(self.row.size, first.dtype, first.device).zero_()
        self.shard = self.whole.view(transport.size, -1)[transport.rank]
        self.work: Work | None = None
        for name, p in self.parameters.items():
            p.data = view(self.whole, self.row, name, p.shape)

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [self.whole]

    def publish(self):
        """Start to gather the updated shards."""
        self.work = self.transport.all_gather(self.whole.view(self.transport.size, -1), self.shard)

    def wait(self):
        """Wait until the parameters are complete."""
        if self.work is not None:
            self.work.wait()
            self.work = None


class Gathered:
    """A rank has its shard. It gathers the parameters when they are used, then frees them.

    Freed parameters read as NaN, and PyTorch refuses to write to them. Autograd may have saved
    views of them (a linear module saves its transposed weight). So all gathers write to the same
    storage, which is resized to nothing in between.

    Args:
        parameters: by name, all of one dtype and device. They need no memory of their own.
        shapes: of the parameters.

    Attributes:
        row, shard, buffers: as for Whole.
        kept: whether the parameters stay gathered until the step ends.
        state: "freed", "gathering", "ready" or "in use".
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        shapes: Mapping[str, tuple[int, ...]],
        transport: GroupTransport,
        kept: bool = False,
    ):
        self.parameters, self.transport, self.kept = dict(parameters), transport, kept
        self.row = Row({name: math.prod(shapes[name]) for name in parameters}, transport.size)
        first = next(iter(parameters.values()))
        self.shard = transport.empty(self.row.shard, first.dtype, first.device).zero_()
        self.whole = torch.empty(self.row.size, dtype=first.dtype, device=first.device)
        self.nbytes = self.whole.nbytes
        missing = torch.full((), math.nan, dtype=first.dtype, device=first.device)
        self.views = {n: view(self.whole, self.row, n, shapes[n]) for n in parameters}
        self.missing = {n: missing.expand(shapes[n]) for n in parameters}
        self.work: Work | None = None
        self.free()

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [self.shard, self.whole]

    def gather(self):
        """Start to gather the parameters, if they are freed."""
        if self.state == "freed":
            self.whole.untyped_storage().resize_(self.nbytes)
            self.work = self.transport.all_gather(
                self.whole.view(self.transport.size, -1), self.shard
            )
            self.state = "gathering"

    def use(self):
        """Wait until the parameters are gathered."""
        if self.work is not None:
            self.work.wait()
            self.work = None
            for name, p in self.parameters.items():
                p.data = self.views[name]
        self.state = "in use"

    def free(self):
        """Free the gathered parameters."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        self.whole.untyped_storage().resize_(0)
        for name, p in self.parameters.items():
            p.data = self.missing[name]
        self.state = "freed"


def view(whole: torch.Tensor, row: Row, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """View a tensor of the row in its shape."""
    return whole[slice(*row.places[name])].view(shape)


class Alone:
    """The transport of a rank that shares a row with no other rank: it sends nothing."""

    rank, size, lasting = 0, 1, False

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, device=device)

    def all_gather(self, every: torch.Tensor, own: torch.Tensor) -> Ready:
        return copied(own, every[0])

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Ready:
        return copied(every[0], own)

    def close(self):
        """Nothing is open."""


def copied(source: torch.Tensor, target: torch.Tensor) -> Ready:
    if source.data_ptr() != target.data_ptr():
        target.copy_(source)
    return Ready(target)
