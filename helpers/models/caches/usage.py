"""What the slots of a cache are used for: tokens, or nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A slot has room for one token, in all blocks of the model.

    Attributes:
        slots: all slots.
        reserved: the slots that belong to a sequence, so that no other one can use them.
        used: those of them that have a token. A shared slot counts once.
        tokens: the tokens of all sequences. A shared slot counts for each of its sequences.
    """

    slots: int
    reserved: int
    used: int
    tokens: int

    @property
    def wasted(self) -> int:
        """The slots that belong to a sequence, but have no token."""
        return self.reserved - self.used

    @property
    def saved(self) -> int:
        """The slots that sharing saves."""
        return self.tokens - self.used
