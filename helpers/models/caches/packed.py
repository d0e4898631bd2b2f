"""The new tokens of several sequences in one row, without padding: another Cache of a paged cache.

N  tokens in the row        G  sequences of a group        S  keys per sequence, at most
P  slots in a block         T  new tokens per sequence

A batch of sequences that get different numbers of tokens is padded to the longest. A packed row is
not: it has the tokens of the first sequence, then those of the second, and so on. Linear layers and
norms treat every token alike, so they need not know where a sequence ends. Attention does: it is
computed for each sequence, or for a group of sequences with one new token each (Orca, Yu et al.
2022, section 3: selective batching).
"""

from collections.abc import Callable, Sequence

import torch

from helpers.models.caches.gather import Gather
from helpers.models.caches.paged import Paged, PagedSequence
from helpers.models.caches.paged_batch import PagedBatch


class Packed(PagedBatch):
    """Obey `Cache` for a model's forward on one row, (1, N).

    The row may be longer than the sequences' tokens. The rest is padding: its results mean nothing.

    Args:
        sequences: of the paged cache, each once. Those with one new token each are fastest side by
            side, in order of length.
        counts: how many tokens of the row each sequence has, 1 or more.

    Raises:
        ValueError: a sequence is freed, of another cache, or there twice; or not one count, 1 or
            more, for each sequence.
    """

    def __init__(self, paged: Paged, sequences: Sequence[PagedSequence], counts: Sequence[int]):
        if paged.states:
            raise ValueError(
                "tokens of several sequences cannot share a row: the model has a recurrent block; "
                "use PagedBatch(paged, sequences)"
            )
        if len(counts) != len(sequences) or any(count < 1 for count in counts):
            raise ValueError(
                f"counts {list(counts)} of {len(sequences)} sequences; give 1 or more for each"
            )
        super().__init__(paged, sequences)
        self.added = list(counts)
        self.blocks = {
            number: PackedBlock(number, rows) for number, rows in paged.store.rows.items()
        }

    def begin(self, tokens: int, counts: Sequence[int] | None = None) -> torch.Tensor:
        """Make room, and return the places of the row's tokens, (1, N).

        Raises:
            ValueError: the row is shorter than the sequences' tokens, or there are `counts` of
                rows; the row's parts are those given before.
            OutOfBlocks: too few blocks are free. Nothing has changed.
        """
        if counts is not None:
            raise ValueError("a packed row is never padded by counts; give them to Packed")
        if tokens < sum(self.added):
            raise ValueError(
                f"a row of {tokens} tokens, but the sequences have {sum(self.added)} in it"
            )
        self.paged.reserve(self.sequences, self.added)
        groups = [
            Group(self.paged, self.sequences[first:last], self.added[first], start)
            for first, last, start in runs(self.added, [len(s.table) for s in self.sequences])
        ]
        slots = [torch.cat(part) for part in zip(*(group.slots for group in groups), strict=True)]
        places = torch.cat([group.places.flatten() for group in groups])  # (real tokens,)
        rest = places.new_zeros(tokens - len(places))
        for block in self.blocks.values():
            block.groups, block.slots = groups, tuple(slots)
        return torch.cat([places, rest])[None]

    def end(self):
        for sequence, more in zip(self.sequences, self.added, strict=True):
            sequence.length += more
        self.added = [0] * len(self.sequences)


def runs(counts: Sequence[int], blocks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Divide the sequences into groups: neighbours with one token each, and every other alone.

    A group reads as many blocks of each sequence as the longest has. So neighbours are in one group
    only if they have about as many blocks.

    Args:
        counts: the new tokens of each sequence.
        blocks: that each sequence reads.

    Returns:
        (first sequence, the one after the last, place of the first token in the row) of each.
    """
    found, start = [], 0
    for number, count in enumerate(counts):
        first, last, place = found[-1] if found else (0, 0, 0)
        alike = found and abs(blocks[number] - blocks[first]) <= 2 + blocks[first] // 2
        if alike and count == counts[last - 1] == 1:
            found[-1] = (first, number + 1, place)
        else:
            found.append((number, number + 1, start))
        start += count
    return found


class Group:
    """Sequences with T new tokens each, whose attention is computed at once.

    Attributes:
        row: which tokens of the row are theirs: a slice.
        places: (G, T), their places.
        slots: the block and the slot of each new token, (G T,) each.
        gather: reads M blocks of each sequence, as many as S needs.
        length: S.
        seen: the mask, as for `BlockCache.attend`.
    """

    def __init__(self, paged: Paged, sequences: Sequence[PagedSequence], tokens: int, start: int):
        self.sequences, self.tokens = len(sequences), tokens
        self.row = slice(start, start + len(sequences) * tokens)
        self.length = max(sequence.length for sequence in sequences) + tokens
        most, size = paged.blocks_of(self.length), paged.block_size
        # A short table is filled with the sequence's own blocks: no other sequence's NaN is read.
        tables = [(s.table + s.table[:1] * most)[:most] for s in sequences]
        table = paged.store.index(tables)  # (G, M)
        first = paged.store.index([sequence.length for sequence in sequences])[:, None]
        self.places = first + torch.arange(tokens, device=first.device)
        self.slots = table.gather(1, self.places // size).flatten(), (self.places % size).flatten()
        self.gather = Gather(paged.store, paged.workspace, table)
        self.seen = None
        if any(s.length + tokens < self.length for s in sequences):
            slot = torch.arange(self.length, device=first.device)
            self.seen = (slot <= self.places[..., None])[:, None]  # (G, 1, T, S)


class PackedBlock:
    """One block of the model in a step."""

    counts = None

    def __init__(self, number: int, rows: Sequence[torch.Tensor]):
        self.number, self.rows = number, rows  # (blocks, P, heads, width) each
        self.groups: list[Group] = []
        self.slots: tuple[torch.Tensor, torch.Tensor] | None = None

    def attend(self, core: Callable, q: torch.Tensor, *new: torch.Tensor) -> torch.Tensor:
        """Compute (1, H, N, d) from q (1, H, N, d), as `BlockCache.attend` says."""
        real = len(self.slots[0])
        with torch.no_grad():  # what is kept is data, not part of a graph
            for rows, more in zip(self.rows, new, strict=True):
                rows[self.slots] = more[0, :, :real].transpose(0, 1).to(rows.dtype)
        parts = [self.attend_group(group, core, q, new) for group in self.groups]
        if real < q.shape[2]:  # each token of padding sees itself
            single = [t[:, :, real:].permute(2, 1, 0, 3) for t in (q, *new)]
            parts.append(core(*single, None).permute(2, 1, 0, 3))
        return torch.cat(parts, dim=2)

    def attend_group(self, group: Group, core: Callable, q: torch.Tensor, new) -> torch.Tensor:
        """Compute a group's part of the row, (1, H, G T, d)."""
        heads, size = q.shape[1], (group.sequences, group.tokens)
        own = q[0, :, group.row].unflatten(1, size).transpose(0, 1)  # (G, H, T, d)
        if group.tokens == group.length:  # nothing was kept before: no need to read it back
            every = [t[:, :, group.row].unflatten(2, size)[0].transpose(0, 1) for t in new]
        else:
            with torch.no_grad():
                found = group.gather(self.number)  # (G, heads, M P, width) each
            every = [rows[:, :, : group.length].to(q.dtype) for rows in found]
        y = core(own, *every, group.seen)  # (G, H, T, d)
        return y.transpose(0, 1).reshape(1, heads, -1, y.shape[-1])
