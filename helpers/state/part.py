"""A part: which numbers of the plain model one rank's local tensor holds, as plain data.

The plain model is the model of a single process. Everything else in this package needs only parts:
first values, gathering, loading, resharding, the global norm, checkpoints.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

Range = tuple[int, int]  # start and stop, as in a slice


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A dim of which a rank holds only some indices.

    Attributes:
        dim: of the plain tensor, from 0.
        axes: the mesh axes along which the dim is cut, in the order of cutting: ("tp",).
        ranges: the indices that this rank holds, in the order in which they are stored. A rank may
            hold several ranges (its heads of a fused query, key, value), or none.

    Raises:
        ValueError: a range is negative or runs backwards, or ranges overlap.
    """

    dim: int
    axes: tuple[str, ...]
    ranges: tuple[Range, ...]

    def __post_init__(self):
        set_ = object.__setattr__  # the dataclass is frozen
        set_(self, "axes", tuple(self.axes))
        set_(self, "ranges", joined(self.ranges))
        for start, stop in self.ranges:
            if not 0 <= start < stop:
                raise ValueError(
                    f"range {start}:{stop} of dim {self.dim} is negative or runs backwards"
                )
        ordered = sorted(self.ranges)
        for (_, stop), (start, _) in itertools.pairwise(ordered):
            if start < stop:
                raise ValueError(f"ranges of dim {self.dim} overlap: {self.ranges}")

    @property
    def size(self) -> int:
        """How many indices this rank holds."""
        return sum(stop - start for start, stop in self.ranges)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which numbers of a plain tensor one local tensor holds.

    Ranks are world ranks; `Layout.coordinates(rank)` gives a rank's mesh coordinates.

    Attributes:
        name, shape: of the plain tensor. A tied tensor has its first name.
        cuts: the dims that this rank holds in part. It holds all other dims whole.
        flat: (start, stop) within the block that the cuts leave, numbered row by row (ZeRO). The
            local tensor is then one row of stop - start numbers. None: the local tensor is the
            block itself.
        holders: the ranks that hold these same numbers, this rank included, sorted. Mesh axes
            cannot name the holders: a tied embedding is only on the first and the last stage.
        pending: groups of ranks over which the gradient is still a partial sum, in the order in
            which the sums are made. All members name the groups in the same order. Two groups share
            only this rank: the gradient is complete after one sum over each group.

    Raises:
        ValueError: cuts or a flat range exceed the tensor; a dim is cut twice; a pending group is
            not among the holders, or two pending groups share more than one rank.
    """

    name: str
    shape: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()
    flat: Range | None = None
    holders: tuple[int, ...]
    pending: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self):
        set_ = object.__setattr__  # the dataclass is frozen
        set_(self, "shape", tuple(self.shape))
        set_(self, "cuts", tuple(sorted(self.cuts, key=lambda cut: cut.dim)))
        set_(self, "flat", None if self.flat is None else tuple(self.flat))
        set_(self, "holders", tuple(sorted(set(self.holders))))
        set_(self, "pending", tuple(tuple(sorted(set(group))) for group in self.pending))
        self.check_cuts()
        self.check_pending()

    def check_cuts(self):
        dims = [cut.dim for cut in self.cuts]
        if len(set(dims)) != len(dims):
            raise ValueError(f"{self.name}: a dim is cut twice; name all of its axes in one Cut")
        for cut in self.cuts:
            if not 0 <= cut.dim < len(self.shape):
                raise ValueError(f"{self.name} {self.shape} has no dim {cut.dim} to cut")
            if any(stop > self.shape[cut.dim] for _, stop in cut.ranges):
                raise ValueError(f"{self.name} {self.shape}: {cut.ranges} exceeds dim {cut.dim}")
        if self.flat is not None:
            start, stop = self.flat
            if not 0 <= start <= stop <= math.prod(self.block):
                raise ValueError(f"{self.name}: flat {start}:{stop} exceeds the block {self.block}")

    def check_pending(self):
        if not self.holders:
            raise ValueError(f"{self.name} has no holders; name at least this rank")
        for group in self.pending:
            if len(group) < 2 or not set(group) <= set(self.holders):
                raise ValueError(
                    f"{self.name}: a sum over ranks {group} cannot be pending, because ranks "
                    f"{self.holders} hold these numbers. Cut first, then name the pending sums"
                )
        for i, one in enumerate(self.pending):
            for other in self.pending[i + 1 :]:
                if len(set(one) & set(other)) != 1:
                    raise ValueError(f"{self.name}: sums over {one} and {other} count ranks twice")

    @property
    def block(self) -> tuple[int, ...]:
        """The shape that the cuts leave, before the flat range."""
        sizes = {cut.dim: cut.size for cut in self.cuts}
        return tuple(sizes.get(dim, size) for dim, size in enumerate(self.shape))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's tensor."""
        return self.block if self.flat is None else (self.flat[1] - self.flat[0],)

    @property
    def numel(self) -> int:
        """How many numbers this rank holds."""
        return math.prod(self.local_shape)

    def ranges(self, dim: int) -> tuple[Range, ...]:
        """The indices of a dim that the block holds."""
        for cut in self.cuts:
            if cut.dim == dim:
                return cut.ranges
        return ((0, self.shape[dim]),) if self.shape[dim] else ()

    def completed(self, *groups: Iterable[int]) -> "Part":
        """The same part, after its gradient has been summed over these groups (default: all).

        Raises:
            ValueError: a group's sum is not pending, so it would be made twice.
        """
        done = [tuple(sorted(group)) for group in groups] or self.pending
        for group in done:
            if group not in self.pending:
                raise ValueError(f"{self.name}: no sum over ranks {group} is pending")
        return replace(self, pending=[group for group in self.pending if group not in done])

    def __str__(self):
        text = f"{self.name} {self.shape}"
        if self.cuts:
            shown = [
                "+".join(f"{start}:{stop}" for start, stop in self.ranges(dim)) or "none"
                if any(cut.dim == dim for cut in self.cuts)
                else ":"
                for dim in range(len(self.shape))
            ]
            text += f"[{', '.join(shown)}]"
        if self.flat is not None:
            text += f" flat {self.flat[0]}:{self.flat[1]}"
        text += f" on {listed(self.holders)}"
        if self.pending:
            text += " pending " + " and ".join(listed(group) for group in self.pending)
        return text


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Join adjacent ranges and drop empty ranges. The indices keep their order."""
    found: list[Range] = []
    for start, stop in ranges:
        if start == stop:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def listed(ranks: tuple[int, ...]) -> str:
    """Ranks as text for a person, at most eight of them."""
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{more}"


def decays(part: Part) -> bool:
    """Whether weight decay applies: the plain tensor is a matrix, and not a state's decays.

    The plain model's rule; the local shape cannot decide, as a flat range of a matrix has one dim.
    The decays of a state space model are not decayed, as in the code of Mamba's authors.
    """
    return len(part.shape) >= 2 and not part.name.endswith("A_log")
