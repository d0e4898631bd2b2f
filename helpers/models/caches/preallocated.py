"""A cache whose memory is allocated once, for the longest sequence. Or that grows as needed.

B  sequences in a batch        T  new tokens per sequence        C  capacity, slots per sequence
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from helpers.models.caches.cache import CacheFull, Kept, Usage


class Preallocated:
    """Keep each sequence's token n in slot n, of C slots.

    Args:
        kept: what each block keeps, by its number; `kept_by(model)` makes it.
        sequences: B.
        capacity: C.
        dtype, device: of all tensors.
    """

    def __init__(
        self,
        kept: Mapping[int, Kept],
        sequences: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.sequences, self.capacity = sequences, capacity
        self.lengths = [0] * sequences
        self.blocks = {
            number: self.make_block(one, sequences, capacity, dtype, device)
            for number, one in kept.items()
        }
        self.device = device
        self._added = self.lengths

    def make_block(self, one: Kept, *shape_and_place) -> "Slots":
        return Slots(one, *shape_and_place)

    @property
    def bytes(self) -> int:
        """The bytes of all tensors, used or not."""
        return sum(block.bytes for block in self.blocks.values())

    def usage(self) -> Usage:
        """Count the slots that are reserved, used and wasted."""
        slots = self.sequences * self.capacity
        used = sum(min(length, self.capacity) for length in self.lengths)
        return Usage(slots=slots, reserved=slots, used=used, tokens=used)

    def begin(self, tokens: int, counts: Sequence[int] | None = None) -> torch.Tensor:
        added = [tokens] * self.sequences if counts is None else list(counts)
        check_counts(added, self.sequences, tokens)
        step = self.plan(added, tokens)
        self._added = added
        for block in self.blocks.values():
            block.begin(counts, step)
        return step.places

    def plan(self, added: Sequence[int], tokens: int) -> "Step":
        after = [old + new for old, new in zip(self.lengths, added, strict=True)]
        self.make_room(max(after, default=0))
        return Step.of(self.lengths, added, tokens, self.device)

    def make_room(self, length: int):
        if length > self.capacity:
            raise CacheFull(
                f"a sequence would have {length} tokens, but the cache was made for "
                f"{self.capacity}; make it with a larger capacity"
            )

    def end(self):
        for block in self.blocks.values():
            block.commit()
        self.lengths = [old + new for old, new in zip(self.lengths, self._added, strict=True)]
        self._added = [0] * self.sequences

    def rewind(self, lengths: Sequence[int]):
        for old, new in zip(self.lengths, lengths, strict=True):
            if not 0 <= new <= old:
                raise ValueError(f"cannot rewind a sequence of {old} tokens to {new}")
        if list(lengths) != self.lengths and any(block.states for block in self.blocks.values()):
            raise ValueError("a recurrent block's state cannot be rewound; copy it before")
        self.lengths = list(lengths)


class Growing(Preallocated):
    """A cache with exactly as many slots as the longest sequence has tokens.

    Each step copies all that was kept into larger tensors, as `torch.cat` does.
    """

    def __init__(
        self,
        kept: Mapping[int, Kept],
        sequences: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        super().__init__(kept, sequences, 0, dtype, device)

    def make_room(self, length: int):
        if length > self.capacity:
            for block in self.blocks.values():
                block.grow(length)
            self.capacity = length


class Step:
    """Where the new tokens of one forward go, and what they may see. All blocks share it.

    Attributes:
        places: each new token's place, (T,) if all sequences are equally long, else (B, T).
        slots: a slice for all sequences, or the rows, columns and slots of the real tokens.
        length: S, the keys to read per sequence.
        seen: the mask, (B, 1, T, S), or None, as in `BlockCache.attend`.
    """

    def __init__(self, places, slots, length: int, seen: torch.Tensor | None):
        self.places, self.slots, self.length, self.seen = places, slots, length, seen

    @classmethod
    def of(cls, lengths: Sequence[int], added: Sequence[int], tokens: int, device) -> "Step":
        """Plan the step of sequences that have `lengths` tokens and get `added` more."""
        start = lengths[0] if lengths else 0
        if all(old == start for old in lengths) and all(new == tokens for new in added):
            places = torch.arange(start, start + tokens, device=device)
            return cls(places, slice(start, start + tokens), start + tokens, None)
        first = torch.tensor(lengths, device=device)[:, None]  # (B, 1)
        column = torch.arange(tokens, device=device)
        real = column < torch.tensor(added, device=device)[:, None]  # (B, T)
        places = torch.where(real, first + column, 0)
        rows, columns = real.nonzero(as_tuple=True)
        length = max(old + new for old, new in zip(lengths, added, strict=True))
        slot = torch.arange(length, device=device)
        # A padded query sees slot 0 only: its result is not used, but must not be NaN.
        seen = slot <= places[..., None]  # (B, T, S)
        return cls(places, (rows, columns, places[rows, columns]), length, seen[:, None])


class Slots:
    """One block's tensors: (B, heads, C, width) for each that grows, (B, *shape) for each state."""

    def __init__(self, kept: Kept, sequences: int, capacity: int, dtype, device):
        # Zeros: a slot that no one has written may be multiplied by a weight of 0, and 0 NaN = NaN.
        place = {"dtype": dtype, "device": device}
        self.rows = [
            torch.zeros(sequences, heads, capacity, width, **place)
            for heads, width in kept.per_token
        ]
        self.states = [torch.zeros(sequences, *shape, **place) for shape in kept.per_sequence]
        self.begin(None, None)

    def begin(self, counts: Sequence[int] | None, step: "Step | None"):
        """Begin a step. What one that has not ended wrote is dropped."""
        self.counts, self.step = counts, step
        self.written: Sequence[torch.Tensor] = ()  # states

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (*self.rows, *self.states))

    def grow(self, capacity: int):
        for index, old in enumerate(self.rows):
            new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
            new[:, :, : old.shape[2]] = old
            self.rows[index] = new

    def attend(self, core: Callable, q: torch.Tensor, *new: torch.Tensor) -> torch.Tensor:
        for rows, more in zip(self.rows, new, strict=True):
            self.place(rows, more)
        length = self.step.length
        return core(q, *(rows[:, :, :length].to(q.dtype) for rows in self.rows), self.step.seen)

    def place(self, rows: torch.Tensor, more: torch.Tensor):
        """Write the step's new rows (B, heads, T, width) into their slots."""
        if isinstance(self.step.slots, slice):
            rows[:, :, self.step.slots] = more
        else:
            sequence, column, slot = self.step.slots
            rows[sequence, :, slot] = more[sequence, :, column].to(rows.dtype)

    def read(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.states)

    def write(self, *states: torch.Tensor):
        self.written = states

    def commit(self):
        """Keep the states that were written. If the forward fails before, the old ones stay."""
        for old, new in zip(self.states, self.written, strict=bool(self.written)):
            old.copy_(new)
        self.written = ()


def check_counts(counts: Sequence[int], sequences: int, tokens: int):
    """Check how many new tokens are real in each sequence.

    Raises:
        ValueError: not one count per sequence, or a count is not from 0 to T.
    """
    if len(counts) != sequences:
        raise ValueError(f"{len(counts)} counts, but the cache is of {sequences} sequences")
    for count in counts:
        if not 0 <= count <= tokens:
            raise ValueError(f"a count of {count}, but each sequence has {tokens} new tokens")
