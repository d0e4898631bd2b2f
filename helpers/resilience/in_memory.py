"""Checkpoints in memory, with a copy on another rank: no disk, so they can be made at every step.

Ranks form pairs; with an odd number of ranks, the last three form a ring. Each rank keeps its own
shard and a partner's. A rank that has lost its memory gets its shard back from its partner. If
partners are lost together, so is the checkpoint. Pairs are better than one ring over all ranks: of
all pairs of ranks that may fail together, fewer are partners.

Source: Wang et al. 2023, "GEMINI: Fast Failure Recovery in Distributed Training with In-Memory
Checkpoints" (SOSP), its placement in groups. GEMINI also sends in the gaps of training's own
messages; here, training waits.
"""

import torch

from helpers.comm.messages import Peers
from helpers.parallel.strategy import Strategy
from helpers.runtime.plain import decode, encode
from helpers.state.facts import carrier, exchange
from helpers.state.seal import BrokenCheckpoint


class InMemory:
    """This rank's part of the checkpoints in memory. Every rank makes one.

    Attributes:
        kept: number of a checkpoint -> rank -> its shard, as bytes. There are the last two: if a
            rank fails during a save, only some ranks have the new one.
    """

    def __init__(self):
        self.kept: dict[int, dict[int, torch.Tensor]] = {}

    def save(self, strategy: Strategy, **progress):
        """Copy this rank's state, and send it to the partner. Every rank calls it.

        Args:
            progress: as for `Strategy.save`.

        Raises:
            ValueError: there is one rank only.
        """
        peers = Peers()
        to, source = partners(peers.rank, peers.size)
        _, tensors, moments = strategy.stored()
        shard = [dict(tensors), {k: dict(slots) for k, slots in moments.items()}]
        packed = bytearray(encode({"state": [*shard, strategy.scale_state(), progress]}))
        own = torch.frombuffer(packed, dtype=torch.uint8)
        last = max(self.kept, default=0)
        told = exchange([last, len(own)])
        theirs = carried(peers, own, to, told[source][1], source)
        new = 1 + max(number for number, _ in told)
        self.kept = {n: rows for n, rows in self.kept.items() if n == new - 1}
        self.kept[new] = {peers.rank: own, source: theirs}

    def restore(self, strategy: Strategy) -> dict:
        """Go back to the newest checkpoint whose shards all exist. Every rank calls it.

        A rank that has lost its memory calls it with a new `InMemory`, and a new strategy of the
        layout that was saved.

        Returns:
            The progress that `save` got.

        Raises:
            BrokenCheckpoint: partners are lost together, or nothing was saved.
        """
        peers = Peers()
        held = exchange(
            {n: {r: len(row) for r, row in rows.items()} for n, rows in self.kept.items()}
        )
        numbers, everyone = {n for theirs in held for n in theirs}, range(peers.size)
        gone = {
            n: [r for r in everyone if not any(r in theirs.get(n, {}) for theirs in held)]
            for n in sorted(numbers)
        }
        complete = [n for n, missing in gone.items() if not missing]
        if not complete:
            raise BrokenCheckpoint(
                f"the shards of ranks {gone[max(gone)]} are on no rank: partners have lost their "
                "memory together. Restore from a disk"
                if gone
                else "no checkpoint is in memory: none was saved, or all ranks are lost"
            )
        number = max(complete)
        own = self.kept.get(number, {}).get(peers.rank)
        for rank in everyone:
            keeper, _ = partners(rank, peers.size)
            if rank in held[rank].get(number, {}):
                continue
            if peers.rank == keeper:
                carried(peers, self.kept[number][rank], rank)
            elif peers.rank == rank:
                own = carried(peers, None, 0, held[keeper][number][rank], keeper)
        self.kept = {number: self.kept.get(number, {}) | {peers.rank: own}}
        [(tensors, moments, scale, progress)] = decode(own.numpy().tobytes())
        _, live, _ = strategy.stored()
        with torch.no_grad():
            for key, value in tensors.items():
                live[key].copy_(value)
        strategy.resume(live, moments, scale)
        return progress


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
