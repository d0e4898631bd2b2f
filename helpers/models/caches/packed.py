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

from helpers.models.caches.paged import Paged, PagedSequence
from helpers.models.caches.paged_batch import PagedBatch, PagedBlock, Pages
from helpers.models.caches.preallocated import Step


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
        self._added = list(counts)
        self.blocks = {number: PackedBlock(paged, number) for number in paged.store.rows}

    def begin(self, tokens: int, counts: Sequence[int] | None = None) -> torch.Tensor:
        """Make room, and return the places of the row's tokens, (1, N).

        Raises:
            ValueError: the row is shorter than the sequences' tokens, or there are `counts` of
                rows; the row's parts are those given before.
            OutOfBlocks: too few blocks are free. Nothing has changed.
        """
        if counts is not None:
            raise ValueError("a packed row is never padded by counts; give them to Packed")
        if tokens < sum(self._added):
            raise ValueError(
                f"a row of {tokens} tokens, but the sequences have {sum(self._added)} in it"
            )
        self.paged.reserve(self.sequences, self._added)
        groups = [
            Group(self.paged, self.sequences[first:last], self._added[first], start)
            for first, last, start in runs(self._added, [len(s.table) for s in self.sequences])
        ]
        slots = [
            torch.cat([part.flatten() for part in parts])  # (real tokens,)
            for parts in zip(*(group.slots for group in groups), strict=True)
        ]
        places = torch.cat([g.step.places.expand(g.size).flatten() for g in groups])
        rest = places.new_zeros(tokens - len(places))
        for block in self.blocks.values():
            block.groups, block.slots = groups, tuple(slots)
        return torch.cat([places, rest])[None]


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


class Group(Pages):
    """Sequences with T new tokens each, whose attention is computed at once.

    Attributes:
        row: which tokens of the row are theirs: a slice.
        size: (G, T).
    """

    def __init__(self, paged: Paged, sequences: Sequence[PagedSequence], tokens: int, start: int):
        lengths = [sequence.length for sequence in sequences]
        step = Step.of(lengths, [tokens] * len(lengths), tokens, paged.device)
        super().__init__(paged, sequences, step)
        self.size = len(lengths), tokens
        self.row = slice(start, start + len(lengths) * tokens)


class PackedBlock(PagedBlock):
    """One block of the model in a step.

    Attributes:
        groups: of the row's sequences.
        slots: the block numbers and the slots of the row's real tokens.
    """

    groups: Sequence[Group] = ()
    slots: tuple[torch.Tensor, torch.Tensor] | None = None

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
        heads, step = q.shape[1], group.step
        own = q[0, :, group.row].unflatten(1, group.size).transpose(0, 1)  # (G, H, T, d)
        if group.size[1] == step.length:  # nothing was kept before: no need to read it back
            every = [t[0, :, group.row].unflatten(1, group.size).transpose(0, 1) for t in new]
        else:
            with torch.no_grad():
                found = group.gather(self.number)  # (G, heads, M P, width) each
            every = [rows[:, :, : step.length].to(q.dtype) for rows in found]
        y = core(own, *every, step.seen)  # (G, H, T, d)
        return y.transpose(0, 1).reshape(1, heads, -1, y.shape[-1])
