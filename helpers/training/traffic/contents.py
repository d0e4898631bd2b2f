"""Find what a message contains: parameters by their values, gradients by their order and sizes.

Libraries copy shards to buffers of their own before they send them. So an address says nothing
about a message, but its content does: trained parameters have no two equal runs of numbers.

A library sends a gradient after its layer's backward has begun, and in that order: layer by layer,
or in buckets. So a message contains a run of the layers whose gradients are not sent yet. Their
sizes tell which run.
"""

from collections.abc import Collection, Iterator, Mapping

import torch

BITS = 64  # of a run of numbers that is compared
SEVERAL, NONE = -1, -2  # owners of a run that several parameters have, or none
FACTOR = -7046029254386353131  # odd; products wrap around 2^64


class Fingerprints:
    """Every run of a few neighbouring numbers of the parameters, hashed.

    Args:
        tensors: the plain model's parameters, by name.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self.tensors, self.names = tensors, list(tensors)
        self.tables: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}

    def table(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Sorted hashes, and the number of each hash's tensor; SEVERAL if several have it."""
        if dtype not in self.tables:
            every = (hashes(tensor.to(dtype)) for tensor in self.tensors.values())
            found = [without_zeros(one, dtype) for one in every]
            owners = [torch.full_like(one, number) for number, one in enumerate(found)]
            keys, order = torch.cat(found).sort()
            owner = torch.cat(owners)[order]
            keys, inverse = keys.unique_consecutive(return_inverse=True)
            low, high = (
                torch.zeros_like(keys).scatter_reduce(0, inverse, owner, how, include_self=False)
                for how in ("amin", "amax")
            )
            self.tables[dtype] = keys, torch.where(low == high, low, SEVERAL)
        return self.tables[dtype]

    def find(self, content: torch.Tensor) -> dict[str, int]:
        """Count the runs of each parameter in the content of a message: name -> runs.

        Returns:
            {} if less than a quarter of the runs are of one parameter only.
        """
        owners = self.owners(content)
        numbers, counts = owners[owners >= 0].unique(return_counts=True)
        if 4 * int(counts.sum()) < len(owners):
            return {}
        pairs = zip(numbers.tolist(), counts.tolist(), strict=True)
        return {self.names[number]: count for number, count in pairs}

    def knows(self, content: torch.Tensor) -> bool:
        """Whether at least half of the runs are of some parameters, of several perhaps."""
        owners = self.owners(content)
        return len(owners) > 0 and 2 * int((owners >= SEVERAL).sum()) >= len(owners)

    def owners(self, content: torch.Tensor) -> torch.Tensor:
        """The number of each run's parameter, or SEVERAL, or NONE; runs of zeros are left out."""
        own = without_zeros(hashes(content), content.dtype)
        keys, owners = self.table(content.dtype)
        if not len(keys):
            return torch.full_like(own, NONE)
        places = torch.searchsorted(keys, own).clamp(max=len(keys) - 1)
        return torch.where(keys[places] == own, owners[places], NONE)


def without_zeros(found: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Leave out the runs of zeros: gradients, biases and padding all have them."""
    return found[found != hashes(torch.zeros(BITS // 8, dtype=dtype))[0]]


def hashes(values: torch.Tensor) -> torch.Tensor:
    """Hash each run of neighbouring numbers, 64 bits long: (n - run + 1,) int64."""
    row = values.detach().cpu().contiguous().view(-1)
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[row.itemsize]
    bits = row.view(kind).to(torch.int64)
    run = BITS // (8 * row.itemsize)
    count = max(len(bits) - run + 1, 0)
    found = torch.zeros(count, dtype=torch.int64)
    for place in range(run):
        found = (found + bits[place : place + count]) * FACTOR
        found = found ^ (found >> 29)
    return found


class Pending:
    """The parameters whose gradients a rank has, but has not sent.

    Args:
        units: layer -> its trained parameters -> numbers.
        padding: parameter -> the most numbers by which a library may pad it.
        cut: the parameters of which the rank has a part. Its sums may be over fewer ranks.
    """

    def __init__(
        self,
        units: Mapping[str, Mapping[str, int]],
        padding: Mapping[str, int],
        cut: Collection[str] = (),
    ):
        self.units, self.padding, self.cut = units, padding, cut
        self.waiting: dict[str, dict[str, int]] = {}  # layer -> parameters, in the backward's order

    def begin(self, unit: str):
        """The backward of this layer begins. Its last parameter gets its gradient first."""
        own = self.waiting.setdefault(unit, {})
        for name, numbers in reversed(self.units[unit].items()):
            own.setdefault(name, numbers)

    def take(self, numbers: int) -> dict[str, dict[str, int]]:
        """Remove the gradients of a message of this size: layer -> parameter -> numbers.

        Returns:
            {} if no run of layers or parameters has this size.
        """
        best: tuple | None = None
        for run, whole in self.runs():
            excess = numbers - sum(self.waiting[unit][name] for unit, name in run)
            if not 0 <= excess <= sum(self.padding[name] for _, name in run):
                continue
            rank = excess > 0 and not whole, excess  # a bucket within a layer has no padding
            if best is None or rank < best[0]:
                best = rank, run
        if best is None:
            return {}
        taken: dict[str, dict[str, int]] = {}
        for unit, name in best[1]:
            taken.setdefault(unit, {})[name] = self.waiting[unit].pop(name)
        for unit in [unit for unit, own in self.waiting.items() if not own]:
            del self.waiting[unit]
        return taken

    def runs(self) -> Iterator[tuple[list[tuple[str, str]], bool]]:
        """Yield what a message may contain: whole layers, then the first parameters.

        Each is a list of (layer, parameter), and whether it consists of whole layers. All cut
        parameters may be left out, or all others.
        """
        every = [[(unit, name) for name in own] for unit, own in self.waiting.items()]
        for kept in ((True, False), (True,), (False,)) if self.cut else ((False,),):
            layers = [[pair for pair in own if (pair[1] in self.cut) in kept] for own in every]
            layers = [own for own in layers if own]
            for length in range(1, len(layers) + 1):
                for first in range(len(layers) - length + 1):
                    yield [pair for layer in layers[first : first + length] for pair in layer], True
            flat = [pair for layer in layers for pair in layer]
            for last in range(1, len(flat) + 1):
                yield flat[:last], False
