"""Keep the rows of `worker.log` in memory, up to a limit."""

from helpers.runtime.terminal import say

ROWS_KEPT = 1_000_000  # of a call, over all ranks
CHARACTERS_KEPT = 100_000_000  # of the words in these rows


class Rows:
    """The first rows of a call; the later rows are only counted, because memory is limited.

    Attributes:
        kept: the rows as dicts, in the order of arrival.
        left_out: the number of rows that were not kept.
    """

    def __init__(self):
        self.kept: list[dict] = []
        self.left_out = 0
        self.characters = 0

    def add(self, row: dict) -> bool:
        """Keep the row; return False if there is no room for it."""
        words = sum(len(value) for value in row.values() if isinstance(value, str))
        full = len(self.kept) >= ROWS_KEPT or self.characters + words > CHARACTERS_KEPT
        if self.left_out or full:  # after the first missing row, no other row is kept
            self.left_out += 1
            return False
        self.characters += words
        self.kept.append(row)
        return True

    def finish(self):
        """Print how many rows are missing."""
        if self.left_out:
            say(
                f"worker.log: the last {self.left_out:,} rows are left out. A call keeps "
                f"{ROWS_KEPT:,} rows, with {CHARACTERS_KEPT:,} characters of text. "
                "Log every tenth step, or write to a file."
            )
