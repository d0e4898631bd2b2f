"""Some sequences of a paged cache as one Cache, for one step of a model.

B  sequences in the step        P  slots in a block
T  new tokens per sequence      S  keys per sequence that the new tokens may see, at most
"""

from collections.abc import Callable, Sequence

import torch

from helpers.models.caches.paged import Paged, PagedSequence
from helpers.models.caches.preallocated import Step, check_counts
from helpers.models.caches.store import Gather


class PagedBatch:
    """Obey `Cache` over these sequences, in this order. It costs next to nothing.

    Attributes:
        bytes: those of the whole paged cache.

    Raises:
        ValueError: a sequence is freed, of another cache, or there twice.
    """

    def __init__(self, paged: Paged, sequences: Sequence[PagedSequence]):
        self.paged, self.sequences = paged, list(sequences)
        paged.check(self.sequences)
        self.blocks = {number: PagedBlock(paged, number) for number in paged.store.rows}
        self._added = [0] * len(self.sequences)

    @property
    def lengths(self) -> list[int]:
        return [sequence.length for sequence in self.sequences]

    @property
    def bytes(self) -> int:
        return self.paged.bytes

    def begin(self, tokens: int, counts: Sequence[int] | None = None) -> torch.Tensor:
        added = [tokens] * len(self.sequences) if counts is None else list(counts)
        check_counts(added, len(self.sequences), tokens)
        for sequence in self.sequences:
            sequence.check()
        self.paged.reserve(self.sequences, added)
        self._added = added
        step = Step.of(self.lengths, added, tokens, self.paged.device)
        pages = Pages(self.paged, self.sequences, step)
        for block in self.blocks.values():
            block.counts, block.pages, block.written = counts, pages, None
        return step.places

    def end(self):
        for sequence, more in zip(self.sequences, self._added, strict=True):
            sequence.length += more
        self._added = [0] * len(self.sequences)
        for block in self.blocks.values():
            block.commit()

    def rewind(self, lengths: Sequence[int]):
        for sequence, length in zip(self.sequences, lengths, strict=True):
            sequence.check_rewind(length)
        for sequence, length in zip(self.sequences, lengths, strict=True):
            sequence.rewind(length)


class Pages:
    """Where a step reads and writes. All blocks of the model share it.

    Attributes:
        step: places, mask and S.
        gather: reads the blocks of each sequence, as many as S needs.
        slots: the block numbers and the slots of the new tokens, (B, T) each; or (real tokens,) if
            the batch is ragged. None: no sequence has any token.
        lines: (B,) the sequences' lines of states.
    """

    def __init__(self, paged: Paged, sequences: Sequence[PagedSequence], step: Step):
        self.step, size = step, paged.block_size
        most = paged.blocks_of(step.length)
        # A short table is filled with the sequence's own blocks: no other sequence's NaN is read.
        rows = [(s.table + s.table[:1] * most)[:most] or [0] * most for s in sequences]
        table = paged.store.index(rows).reshape(len(sequences), most)
        self.gather = Gather(paged.store, paged.workspace, table)
        self.lines = paged.store.index([s.line for s in sequences])
        if not most:
            self.slots = None
        elif isinstance(step.slots, slice):
            places = step.places.expand(len(sequences), -1)
            self.slots = table.gather(1, places // size), places % size
        else:
            row, _, place = step.slots
            self.slots = table[row, place // size], place % size


class PagedBlock:
    """One block of the model in a step."""

    def __init__(self, paged: Paged, number: int):
        self.paged, self.number, self.rows = paged, number, paged.store.rows[number]
        self.counts: Sequence[int] | None = None
        self.pages: Pages | None = None
        self.written: tuple[torch.Tensor, ...] | None = None

    def attend(self, core: Callable, q: torch.Tensor, *new: torch.Tensor) -> torch.Tensor:
        step = self.pages.step
        with torch.no_grad():  # what is kept is data, not part of a graph
            for rows, more in zip(self.rows, new, strict=True):
                more = more.to(rows.dtype).transpose(1, 2)  # (B, T, heads, width)
                if not isinstance(step.slots, slice):
                    more = more[step.slots[:2]]  # (real tokens, heads, width)
                if self.pages.slots is not None:
                    rows[self.pages.slots] = more
            every = self.pages.gather(self.number)
        kept = (rows[:, :, : step.length].to(q.dtype) for rows in every)  # (B, heads, S, width)
        return core(q, *kept, step.seen)

    def read(self) -> tuple[torch.Tensor, ...]:
        return self.paged.states.read(self.number, self.pages.lines)

    def write(self, *states: torch.Tensor):
        self.written = states

    def commit(self):
        """Keep the states that the step wrote. A step that fails leaves the old ones."""
        if self.written is not None:
            self.paged.states.write(self.number, self.pages.lines, self.written)
            self.written = None
