"""Where tensors lie in a padded row that ranks share in equal shards: pure arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

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
