"""Known prefixes: which block has the keys and values of which tokens.

A token's keys and values depend on all tokens before it. So a block is known by its own tokens and
by the block before it. This makes a tree: a path from the root spells a text. vLLM compares hashes
of the text; this file compares the tokens themselves, so two texts are never confused.
"""

from collections.abc import Iterator, Sequence

ROOT = 0  # the place in the tree before the first block


class Prefixes:
    """A tree of full blocks.

    Args:
        block_size: tokens in a block.
    """

    def __init__(self, block_size: int):
        self.block_size = block_size
        # A place has a number that is never used again. A block's number is used again: a child
        # under that key would be found below the new content of its parent's block.
        self._places = ROOT
        self._found: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # -> place, block
        self._key: dict[int, tuple[int, tuple[int, ...]]] = {}  # block -> its key above

    def __len__(self):
        return len(self._key)

    def __contains__(self, block: int):
        return block in self._key

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest known prefix of these tokens, in whole blocks."""
        blocks, place = [], ROOT
        for part in self.parts(tokens):
            if (place, part) not in self._found:
                break
            place, block = self._found[place, part]
            blocks.append(block)
        return blocks

    def add(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Make known that these blocks have these tokens: a whole text from its beginning.

        If another block is known for the same text, that one stays.

        Args:
            tokens: at least as many as fill the blocks.
        """
        place = ROOT
        for part, block in zip(self.parts(tokens), blocks, strict=False):
            key = place, part
            if key not in self._found:
                self.forget(block)
                self._places += 1
                self._found[key] = self._places, block
                self._key[block] = key
            place, _ = self._found[key]

    def forget(self, block: int) -> None:
        """Forget this block, known or not, because its content will change.

        The blocks after it cannot be found any more.
        """
        if block in self._key:
            del self._found[self._key.pop(block)]

    def parts(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The tokens of each full block."""
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            yield tuple(map(int, tokens[start : start + self.block_size]))
