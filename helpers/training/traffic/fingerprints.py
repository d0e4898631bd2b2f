"""Find the parameters whose values a message contains.

Libraries copy shards to buffers of their own before they send them. So an address says nothing
about a message, but its content does: trained parameters have no two equal runs of numbers.
"""

from collections.abc import Mapping

import torch

BITS = 64  # of a run of numbers that is compared
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
        """Sorted hashes, and the number of each hash's tensor; -1 if several tensors have it."""
        if dtype not in self.tables:
            found = [hashes(tensor.to(dtype)) for tensor in self.tensors.values()]
            owners = [torch.full_like(one, number) for number, one in enumerate(found)]
            keys, order = torch.cat(found).sort()
            owner = torch.cat(owners)[order]
            keys, inverse = keys.unique_consecutive(return_inverse=True)
            low, high = (
                torch.zeros_like(keys).scatter_reduce(0, inverse, owner, how, include_self=False)
                for how in ("amin", "amax")
            )
            self.tables[dtype] = keys, torch.where(low == high, low, -1)
        return self.tables[dtype]

    def find(self, content: torch.Tensor) -> dict[str, int]:
        """Count the runs of each parameter in the content of a message: name -> runs."""
        if not content.dtype.is_floating_point:
            return {}
        keys, owners = self.table(content.dtype)
        own = hashes(content)
        if not len(own) or not len(keys):
            return {}
        places = torch.searchsorted(keys, own).clamp(max=len(keys) - 1)
        hit = owners[places][keys[places] == own]
        numbers, counts = hit[hit >= 0].unique(return_counts=True)
        pairs = zip(numbers.tolist(), counts.tolist(), strict=True)
        return {self.names[number]: count for number, count in pairs}


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
