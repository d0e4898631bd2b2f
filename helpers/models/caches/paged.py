"""A cache in blocks of equal size, which sequences use as they grow, and share (Kwon et al. 2023).

B  sequences in a step        N  blocks of tokens        P  slots in a block, one for each token

A sequence has a table of block numbers, as a process has a page table. Memory is reserved one block
at a time, so a sequence wastes less than one block (section 4.1, 4.2). Sequences with the same
beginning can have the same blocks in their tables (section 4.4).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from helpers.models.caches.allocator import BlockAllocator, OutOfBlocks
from helpers.models.caches.cache import Kept, Usage
from helpers.models.caches.prefixes import Prefixes
from helpers.models.caches.states import States
from helpers.models.caches.store import Store, Workspace


class Paged:
    """The blocks of all sequences. A step runs on a `PagedBatch` of some of them.

    Args:
        kept: what each block of the model keeps, by its number; `kept_by(model)` makes it.
        blocks: N.
        block_size: P, tokens.
        dtype, device: of all tensors.
        share_prefixes: whether a new sequence may start with known blocks, see `register`.

    Attributes:
        sequences: those that are not freed.
        workspace: the memory for a step's copies of one block of the model.

    Raises:
        ValueError: a size is out of its range, or prefixes cannot be shared, because a block of the
            model has a state of fixed size.
    """

    def __init__(
        self,
        kept: Mapping[int, Kept],
        blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        share_prefixes: bool = False,
    ):
        self.block_size, self.device, self.share_prefixes = block_size, device, share_prefixes
        self.store = Store(kept, blocks, block_size, dtype, device)
        self.states = States(kept, dtype, device)
        if share_prefixes and self.states:
            raise ValueError(
                "prefixes cannot be shared: a recurrent block's state is of the whole text, not of "
                "a block; use share_prefixes=False"
            )
        self.workspace = Workspace()
        self.allocator = BlockAllocator(blocks)
        self.prefixes = Prefixes(block_size)
        self.sequences: list[PagedSequence] = []

    @property
    def free_blocks(self) -> int:
        """How many blocks have no owner."""
        return self.allocator.free

    @property
    def bytes(self) -> int:
        """The bytes of all blocks and states, used or not. `workspace.bytes` is not part of it."""
        return self.store.bytes + self.states.bytes

    def sequence(self, tokens: Sequence[int] = ()) -> "PagedSequence":
        """Make a new sequence without tokens.

        If prefixes are shared, it starts with the longest known prefix of `tokens` in whole blocks.
        At least one token is left to compute, because the model has to give logits. `length` says
        where to continue.
        """
        table = self.prefixes.find(tokens[:-1]) if self.share_prefixes else []
        for block in table:
            if self.allocator.references(block):
                self.allocator.share(block)
            else:
                self.allocator.reclaim(block)
        return self.adopt(table, len(table) * self.block_size, self.states.take())

    def adopt(self, table: list[int], length: int, line: int) -> "PagedSequence":
        """Make a sequence of blocks to which it has references."""
        sequence = PagedSequence(self, table, length, line)
        self.sequences.append(sequence)
        return sequence

    def check(self, sequences: Sequence["PagedSequence"]) -> None:
        """Check that a step can have these sequences.

        Raises:
            ValueError: a sequence is freed, of another cache, or there twice.
        """
        for sequence in sequences:
            sequence.check()
            if sequence.paged is not self:
                raise ValueError("a sequence is of another cache; a batch is of one cache")
        if len({id(sequence) for sequence in sequences}) < len(sequences):
            raise ValueError("a sequence is in the batch twice; fork it to continue it twice")

    def register(self, sequence: "PagedSequence", tokens: Sequence[int]) -> None:
        """Let new sequences start with the full blocks of this one.

        The blocks stay known after the sequence is freed, until they are allocated again.

        Args:
            tokens: the sequence's tokens from its beginning. Later tokens, which are not in the
                cache yet, are left out.

        Raises:
            ValueError: the sequence is freed, or prefixes are not shared.
        """
        sequence.check()
        if not self.share_prefixes:
            raise ValueError("the cache does not share prefixes; make it with share_prefixes=True")
        full = sequence.length // self.block_size
        self.prefixes.add(tokens, sequence.table[:full])

    def blocks_of(self, tokens: int) -> int:
        """How many blocks this number of tokens needs."""
        return -(-tokens // self.block_size) if self.store.block_bytes else 0

    def count(self, sequences: Sequence["PagedSequence"], added: Sequence[int]) -> int:
        """How many free blocks a step needs: new ones, and copies of shared ones."""
        new, writers = 0, Counter()
        for sequence, more in zip(sequences, added, strict=True):
            new += max(self.blocks_of(sequence.length + more) - len(sequence.table), 0)
            writers.update(sequence.table[i] for i in self.written(sequence, more))
        # If all owners of a block write, the last one needs no copy.
        shared = {block: self.allocator.references(block) - 1 for block in writers}
        return new + sum(min(count, shared[block]) for block, count in writers.items())

    def written(self, sequence: "PagedSequence", more: int) -> range:
        """Which places in the table have blocks that the new tokens are written into."""
        if not more:
            return range(0)
        last = min(self.blocks_of(sequence.length + more), len(sequence.table))
        return range(sequence.length // self.block_size, last)

    def reserve(
        self, sequences: Sequence["PagedSequence"], added: Sequence[int], clear: bool = True
    ) -> None:
        """Give each sequence the blocks for its new tokens, each block its own.

        Args:
            clear: whether to fill new blocks with zeros; False if every number is written next.

        Raises:
            OutOfBlocks: too few blocks are free. Nothing has changed.
        """
        needed = self.count(sequences, added)
        if needed > self.free_blocks:
            raise OutOfBlocks(needed, self.free_blocks, self.allocator.blocks)
        fresh, shared, copies = [], [], []
        for sequence, more in zip(sequences, added, strict=True):
            for i in self.written(sequence, more):
                block = sequence.table[i]
                if self.allocator.references(block) > 1:
                    sequence.table[i] = self.take()
                    shared.append(block)
                    copies.append(sequence.table[i])
                    self.allocator.release(block)
                else:
                    self.prefixes.forget(block)
            while len(sequence.table) < self.blocks_of(sequence.length + more):
                sequence.table.append(self.take())
                fresh.append(sequence.table[-1])
        if clear:
            self.store.clear(fresh)
        self.store.copy(shared, copies)

    def take(self) -> int:
        block = self.allocator.allocate()
        self.prefixes.forget(block)
        return block

    def usage(self) -> Usage:
        """Count the slots that are reserved, used and wasted."""
        filled: dict[int, int] = {}
        for sequence in self.sequences:
            for i, block in enumerate(sequence.table):
                tokens = min(max(sequence.length - i * self.block_size, 0), self.block_size)
                filled[block] = max(filled.get(block, 0), tokens)
        return Usage(
            slots=self.allocator.blocks * self.block_size,
            reserved=self.allocator.used * self.block_size,
            used=sum(filled.values()),
            tokens=sum(sequence.length for sequence in self.sequences),
        )

    def plot(self, names: Sequence[str] = (), **options):
        """Draw which sequence has which block, and which slots are empty. Returns a Picture.

        Args:
            names: of the sequences, in their order; by default their numbers.
            options: those of `helpers.plots.blocks`.
        """
        from helpers.plots.serving import blocks

        rows = list(enumerate(self.sequences))
        found = {
            names[i] if i < len(names) else f"sequence {i}": (s.table, s.length) for i, s in rows
        }
        known = [block for block in range(self.allocator.blocks) if block in self.prefixes]
        return blocks(found, self.allocator.blocks, self.block_size, known=known, **options)

    def _repr_png_(self):
        return self.plot()._repr_png_()


class PagedSequence:
    """The tokens of one sequence: a table of block numbers, and its length.

    `Paged.sequence` makes it.

    Token n is in slot n % P of block `table[n // P]`, with P slots in a block.

    Attributes:
        table: the numbers of its blocks. After a forward that failed, the table may have more
            blocks than the length needs; the next step uses them.
        length: its tokens so far.
        line: the number of its line of states.
        live: False after `free`.
    """

    def __init__(self, paged: Paged, table: list[int], length: int, line: int):
        self.paged, self.table, self.length, self.line = paged, table, length, line
        self.live = True

    def __repr__(self):
        freed = "" if self.live else ", freed"
        return f"PagedSequence({self.length} tokens, blocks {self.table}{freed})"

    def check(self) -> None:
        """Raise a ValueError if the sequence is freed."""
        if not self.live:
            raise ValueError("the sequence is freed already; make a new one")

    def fork(self) -> "PagedSequence":
        """Make a second sequence with the same tokens. The two share all blocks.

        The first sequence that writes into a shared block gets a copy of it.

        Raises:
            ValueError: the sequence is freed.
        """
        self.check()
        paged = self.paged
        table = self.table[: paged.blocks_of(self.length)]
        for block in table:
            paged.allocator.share(block)
        return paged.adopt(table, self.length, paged.states.copy(self.line))

    def rewind(self, length: int) -> None:
        """Forget the tokens from this length on. Blocks without tokens are released.

        Raises:
            ValueError: the sequence is freed or has fewer tokens, or the model's states cannot be
                rewound.
        """
        self.check_rewind(length)
        self.length = length
        self.cut(self.paged.blocks_of(length))

    def check_rewind(self, length: int) -> None:
        """Raise the errors of `rewind`, and change nothing."""
        self.check()
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind a sequence of {self.length} tokens to {length}")
        if length != self.length and self.paged.states:
            raise ValueError(
                "a recurrent block's state cannot be rewound; fork the sequence before"
            )

    def free(self) -> None:
        """Release all blocks. The sequence cannot be used any more.

        Raises:
            ValueError: the sequence is freed already.
        """
        self.check()
        self.cut(0)
        self.length, self.live = 0, False
        self.paged.states.give_back(self.line)
        self.paged.sequences.remove(self)

    def cut(self, blocks: int) -> None:
        """Release the last blocks, so that this many are left."""
        while len(self.table) > blocks:  # the last first: a prefix is useful for longer
            self.paged.allocator.release(self.table.pop())
