"""Find a rank whose numbers were silently changed: replicas must have equal bits.

A processor that computes wrongly, or memory that loses a bit, raises no error. But data parallel
keeps each number on several ranks, and the same update of the same number gives the same bits. So
ranks exchange checksums, 8 bytes a tensor, and compare.

With three holders or more the majority is believed; with two, both are named. Numbers that only one
rank holds (shards of ZeRO) have no witness. A gradient that is wrong before the ranks add it up
reaches all replicas alike: it is not found.
"""

from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist

from helpers.parallel.strategy import Strategy
from helpers.state.facts import exchange
from helpers.state.seal import checksum

VALUE = "value"  # beside the slots of the optimizer's state


@dataclass(frozen=True)
class Odd:
    """Ranks that disagree with the other holders of a tensor.

    Attributes:
        name: of the plain tensor.
        slot: "value", or a name of the optimizer's state, such as "exp_avg".
        ranks: that differ from the majority; all holders, if there is no majority.
        holders: all that have these numbers.
    """

    name: str
    slot: str
    ranks: tuple[int, ...]
    holders: tuple[int, ...]


def odd_replicas(strategy: Strategy) -> list[Odd]:
    """Compare all replicas of parameters and optimizer state. Every rank calls it.

    Returns:
        The same list on every rank; [] if all replicas have equal bits.
    """
    parts, values, moments = strategy.stored()
    own = parts.ranks[dist.get_rank()]
    sums = {
        key: {slot: checksum(t) for slot, t in {VALUE: values[key], **moments.get(key, {})}.items()}
        for key in own
    }
    held: dict[tuple, dict[int, dict[str, int]]] = {}
    for rank, found in enumerate(exchange(sums)):
        for key, by_slot in found.items():
            part = parts.ranks[rank][key]
            held.setdefault((part.name, part.cuts, part.flat), {})[rank] = by_slot
    found = []
    for (name, *_), by_rank in held.items():
        for slot in sorted({slot for by_slot in by_rank.values() for slot in by_slot}):
            seen = {rank: by_slot.get(slot) for rank, by_slot in by_rank.items()}
            (most, count), *_ = Counter(seen.values()).most_common()
            if count < len(seen):
                trusted = 2 * count > len(seen)
                ranks = [rank for rank in seen if not trusted or seen[rank] != most]
                found.append(Odd(name, slot, tuple(sorted(ranks)), tuple(sorted(seen))))
    return found


def flip(tensor: torch.Tensor, index: int, bit: int):
    """Change one bit of one number in place, as a broken chip would.

    Args:
        index: of the number, in the order of memory.
        bit: from 0, the least significant bit of the mantissa.
    """
    size = tensor.element_size()
    if not 0 <= bit < 8 * size:
        raise ValueError(f"a number of {tensor.dtype} has the bits 0 to {8 * size - 1}, not {bit}")
    with torch.no_grad():
        tensor.view(-1).view(torch.uint8)[index * size + bit // 8] ^= 1 << bit % 8
