"""One sequence of a paged cache: a table of block numbers, and its length."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.models.caches.paged import Paged


class PagedSequence:
    """The tokens of one sequence. `Paged.sequence` makes it.

    Token n is in slot n % P of block `table[n // P]`, with P slots in a block.

    Attributes:
        table: the numbers of its blocks. After a forward that failed, the table may have more
            blocks than the length needs; the next step uses them.
        length: its tokens so far.
        line: the number of its line of states.
        live: False after `free`.
    """

    def __init__(self, paged: "Paged", table: list[int], length: int, line: int):
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
