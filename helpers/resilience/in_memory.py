"""Checkpoints in memory, with a copy on another rank: no disk, so they can be made at every step.

Ranks form pairs; with an odd number of ranks, the last three form a ring. Each rank keeps its own
shard and a partner's. A rank that has lost its memory gets its shard back from its partner. If
partners are lost together, so is the checkpoint. Pairs are better than one ring over all ranks: of
all pairs of ranks that may fail together, fewer are partners.

A checkpoint is restored to any layout, and to any number of ranks: survivors can go on without the
lost ones, and new ranks can join.

Source: Wang et al. 2023, "GEMINI: Fast Failure Recovery in Distributed Training with In-Memory
Checkpoints" (SOSP), its placement in groups. GEMINI also sends in the gaps of training's own
messages; here, training waits.
"""

from dataclasses import asdict, replace

import torch

from helpers.comm.messages import Peers
from helpers.parallel.strategy import Strategy
from helpers.runtime.plain import decode, encode
from helpers.state.all_parts import AllParts, decoded
from helpers.state.facts import carrier, exchange
from helpers.state.full_state import moments_and_counts, read
from helpers.state.reshard import reshard
from helpers.state.seal import BrokenCheckpoint


class InMemory:
    """This rank's part of the checkpoints in memory. Every rank makes one.

    Attributes:
        kept: number of a checkpoint -> rank -> its shard, as bytes; first this rank's own. Ranks
            count as they did in the save. There are the last two checkpoints: if a rank fails
            during a save, only some ranks have the new one.
        ranks: number of a checkpoint -> how many ranks saved it.
    """

    def __init__(self):
        self.kept: dict[int, dict[int, torch.Tensor]] = {}
        self.ranks: dict[int, int] = {}

    def save(self, strategy: Strategy, **progress):
        """Copy this rank's state, and send it to the partner. Every rank calls it.

        One rank alone has no partner: it keeps its copy, which a new rank may get later.

        Args:
            progress: as for `Strategy.save`.
        """
        peers = Peers()
        parts, tensors, moments = strategy.stored()
        shard = {
            "parts": [[key, asdict(part)] for key, part in parts.ranks[peers.rank].items()],
            "values": dict(tensors),
            "moments": {key: dict(slots) for key, slots in moments.items()},
            "rest": [strategy.scale_state(), progress],
        }
        packed = bytearray(encode({"shard": shard}))
        own = torch.frombuffer(packed, dtype=torch.uint8)
        last = max(self.kept, default=0)
        told = exchange([last, len(own)])
        rows = {peers.rank: own}
        if peers.size > 1:
            to, source = partners(peers.rank, peers.size)
            rows[source] = carried(peers, own, to, told[source][1], source)
        new = 1 + max(number for number, _ in told)
        self.keep_only(new - 1)
        self.kept[new], self.ranks[new] = rows, peers.size

    def restore(self, strategy: Strategy) -> dict:
        """Go back to the newest checkpoint whose shards all exist. Every rank calls it.

        The layout, and the number of ranks, may differ from those that were saved. A rank that has
        lost its memory, or is new, calls it with a new `InMemory`. Afterwards some shards may have
        no second copy: save again.

        Returns:
            The progress that `save` got.

        Raises:
            BrokenCheckpoint: partners are lost together, or nothing was saved.
        """
        here = Peers().rank
        held = exchange({n: [self.ranks[n], list(rows)] for n, rows in self.kept.items()})
        sizes = {n: size for theirs in held for n, (size, _) in theirs.items()}
        keepers = {n: keeper_of(n, held) for n in sizes}
        gone = {n: [r for r in range(sizes[n]) if r not in keepers[n]] for n in sorted(sizes)}
        complete = [n for n, missing in gone.items() if not missing]
        if not complete:
            raise BrokenCheckpoint(
                f"the shards of ranks {gone[max(gone)]} are on no rank: partners have lost their "
                "memory together. Restore from a disk"
                if gone
                else "no checkpoint is in memory: none was saved, or all ranks are lost"
            )
        number = max(complete)
        keeper = keepers[number]
        self.keep_only(number)
        parts, values, moments, rest = {}, {}, {}, None
        for old, row in self.kept.get(number, {}).items():
            if keeper[old] != here:
                continue
            [shard] = decode(row.numpy().tobytes())
            rest = shard["rest"]
            for key, fields in shard["parts"]:
                part = decoded(fields)
                if old == min(h for h in part.holders if keeper[h] == here):  # else a second copy
                    name = f"{old} {key}"
                    holders = {keeper[h] for h in part.holders}
                    parts[name] = replace(part, holders=tuple(holders))
                    values[name] = shard["values"][key]
                    moments[name] = shard["moments"].get(key, {})
        restored = into(strategy, AllParts.exchanged(parts), values, moments)
        scale, progress = next(found for found in exchange(rest) if found)
        strategy.resume(*restored, scale)
        return progress

    def keep_only(self, number: int):
        for table in (self.kept, self.ranks):
            for other in table.keys() - {number}:
                del table[other]


@torch.no_grad()
def into(strategy: Strategy, source: AllParts, values, moments) -> tuple[dict, dict]:
    """Reshard values into a strategy's tensors, in place.

    Returns:
        These tensors, by key, and its moments, by key and slot.
    """
    target, live, _ = strategy.stored()
    rows, counts = moments_and_counts(source, moments)
    for key, value in reshard(source, values, target).items():
        live[key].copy_(value)
    found = {
        key: {slot: read(count) for slot, count in counts.get(part.name, {}).items()}
        for key, part in target.ranks[Peers().rank].items()
    }
    for slot, tensors in rows.items():
        for key, value in reshard(source, tensors, target).items():
            found[key][slot] = value
    return live, found


def keeper_of(number: int, held: list[dict]) -> dict[int, int]:
    """For each shard of a checkpoint, by the rank that saved it: the rank to take it from now."""
    found: dict[int, int] = {}
    for rank, theirs in enumerate(held):
        _, kept = theirs.get(number, (0, []))
        for place, old in enumerate(kept):
            if place == 0 or old not in found:  # the first is the rank's own
                found[old] = rank
    return found


def partners(rank: int, ranks: int) -> tuple[int, int]:
    """Return the rank that keeps this rank's shard, and the rank whose shard this rank keeps."""
    if ranks < 2:
        raise ValueError("one rank alone has no partner: save to a disk")
    odd = ranks % 2
    first = min(rank - rank % 2, ranks - 2 - odd)
    size = 2 + (odd and first == ranks - 3)
    return tuple(first + (rank - first + way) % size for way in (1, -1))


def carried(peers: Peers, row, to: int, size: int = 0, source: int = 0) -> torch.Tensor:
    """Send bytes to a rank, if there are any, and receive `size` bytes from another."""
    device = carrier()
    room = torch.empty(size, dtype=torch.uint8, device=device)
    peers.exchange(None if row is None else row.to(device), to, room, source)
    return room.cpu()
