"""A cache of bounded size: the first tokens and the last ones (Xiao et al. 2023, section 3).

B  sequences in a batch        W  window: the last tokens that a query sees, itself included
T  new tokens per sequence     s  sinks: the first tokens, which every query sees
C  slots, s + W                e  how many tokens between sinks and window a query does not see

Softmax has to give its weight to some token, and trained models give what is left over to the
first ones, the **attention sinks**. Without them in the cache, a model fails as soon as the window
moves (section 3.1).

A query's positions are those within the cache, not within the text (section 3.2): without gap, the
sinks are just before the window. The paper keeps keys unrotated and rotates all of them in each
step. Rotary scores depend on the difference of places alone, so here a key stays rotated by its
place in the text. A step rotates the sinks on by e, because they move with the window.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from helpers.models.attention import rotate
from helpers.models.caches.kept import Kept
from helpers.models.caches.preallocated import check_counts
from helpers.models.caches.states import States
from helpers.models.caches.window_step import WindowStep


class Window:
    """Keep s + W tokens of each sequence, however long it gets.

    Places that `begin` returns are places within the cache: less than s + W. So a text may be
    longer than the model's context. Learned positions are added to a token once, when it is new.

    Args:
        kept: what each block keeps, by its number; `kept_by(model)` makes it.
        sequences: B.
        window: W, 1 or more.
        sinks: s.
        dtype, device: of all tensors.

    Raises:
        ValueError: a size is out of its range.
    """

    def __init__(
        self,
        kept: Mapping[int, Kept],
        sequences: int,
        window: int,
        sinks: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        if window < 1 or sinks < 0:
            raise ValueError(
                f"a window of {window} tokens after {sinks} sinks; the window must have 1 token "
                "or more, and sinks 0 or more"
            )
        self.sequences, self.window, self.sinks, self.device = sequences, window, sinks, device
        self.states = States(kept, dtype, device)
        lines = [self.states.take() for _ in range(sequences)]
        self.lines = torch.tensor(lines, dtype=torch.int64, device=device)
        place = {"dtype": dtype, "device": device}
        self.blocks = {n: WindowBlock(self, n, one, place) for n, one in kept.items()}
        self.lengths = [0] * sequences
        self._added = [0] * sequences

    @property
    def bytes(self) -> int:
        """The bytes of all tensors, used or not."""
        rows = (rows.nbytes for block in self.blocks.values() for rows in block.rows)
        return sum(rows) + self.states.bytes

    def begin(self, tokens: int, counts: Sequence[int] | None = None) -> torch.Tensor:
        added = [tokens] * self.sequences if counts is None else list(counts)
        check_counts(added, self.sequences, tokens)
        self._added = added
        step = WindowStep(self.lengths, added, tokens, self.window, self.sinks, self.device)
        for block in self.blocks.values():
            block.counts, block.step, block.new, block.written = counts, step, None, None
        return step.places

    def end(self):
        self.lengths = [old + new for old, new in zip(self.lengths, self._added, strict=True)]
        self._added = [0] * self.sequences
        for block in self.blocks.values():
            block.commit()

    def rewind(self, lengths: Sequence[int]):
        """Forget tokens, as long as the window of the new last token is still there."""
        for old, new in zip(self.lengths, lengths, strict=True):
            if not 0 <= new <= old:
                raise ValueError(f"cannot rewind a sequence of {old} tokens to {new}")
            first_kept, first_seen = old - self.window, new - self.window + 1
            if new > self.sinks and max(first_seen, self.sinks) < first_kept:
                raise ValueError(
                    f"cannot rewind a sequence of {old} tokens to {new}: its window would start "
                    f"at token {max(first_seen, self.sinks)}, but tokens before {first_kept} are "
                    "not kept any more"
                )
        if list(lengths) != self.lengths and self.states:
            raise ValueError("a recurrent block's state cannot be rewound; copy it before")
        self.lengths = list(lengths)


class WindowBlock:
    """One block's rows: (B, heads, C, width) for each tensor that grows.

    Sink n is in slot n. The others take turns: token n is in slot s + (n - s) % W. New rows are
    written when the step ends, because its queries still see the rows that they replace.
    """

    def __init__(self, cache: Window, number: int, kept: Kept, place):
        self.cache, self.number, self.rotary = cache, number, kept.rotary
        slots = cache.sinks + cache.window
        self.rows = [
            torch.zeros(cache.sequences, heads, slots, width, **place)
            for heads, width in kept.per_token
        ]
        self.counts: Sequence[int] | None = None
        self.step: WindowStep | None = None
        self.new: list[torch.Tensor] | None = None
        self.written: tuple[torch.Tensor, ...] | None = None

    def attend(self, core: Callable, q: torch.Tensor, *new: torch.Tensor) -> torch.Tensor:
        step, new = self.step, list(new)
        moved = self.rotary is not None and step.moved
        if moved:  # from places within the cache to places within the text
            part, angles = self.rotary, step.angles(self.rotary, q.dtype)
            q = turn(q, part.query, *angles)
            new[part.tensor] = turn(new[part.tensor], part.key, *angles)
        self.new = [t.detach() for t in new]
        every = [
            torch.cat([rows.to(q.dtype), more], dim=2)  # (B, heads, C + T, width)
            for rows, more in zip(self.rows, new, strict=True)
        ]
        if moved and self.cache.sinks:
            every = [self.with_sinks(i, rows, angles) for i, rows in enumerate(every)]
        return core(q, *every, step.seen(copies=moved and self.cache.sinks > 0))

    def with_sinks(self, which: int, rows: torch.Tensor, angles) -> torch.Tensor:
        """Add the sinks once more for each query, with keys rotated on to the query's window.

        Returns:
            (B, heads, C + T + T s, width).
        """
        index, part = self.step.sink_index, self.rotary  # (B, s)
        sequences, heads, _, width = rows.shape
        index = index[:, None, :, None].expand(-1, heads, -1, width)
        sinks = rows.gather(2, index)  # (B, heads, s, width)
        copies = sinks[:, :, None].expand(-1, -1, self.step.tokens, -1, -1)
        if which == part.tensor:
            flat = copies.transpose(2, 3).reshape(sequences, -1, self.step.tokens, width)
            flat = turn(flat, part.key, *angles)  # (B, heads s, T, width)
            copies = flat.unflatten(1, (heads, -1)).transpose(2, 3)
        return torch.cat([rows, copies.flatten(2, 3)], dim=2)

    def read(self) -> tuple[torch.Tensor, ...]:
        return self.cache.states.read(self.number, self.cache.lines)

    def write(self, *states: torch.Tensor):
        self.written = states

    def commit(self):
        """Keep what the step has computed. A step that fails leaves everything as before."""
        if self.new is not None:
            sequence, column, slot = self.step.slots
            for rows, new in zip(self.rows, self.new, strict=True):
                rows[sequence, :, slot] = new[sequence, :, column].to(rows.dtype)
        if self.written is not None:
            self.cache.states.write(self.number, self.cache.lines, self.written)
        self.new = self.written = None


def turn(x: torch.Tensor, start: int, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate a part of each head on: x (B, heads, T, width), by angles (B, T, part/2)."""
    end = start + 2 * cos.shape[-1]
    x = x.transpose(1, 2)  # (B, T, heads, width)
    parts = [x[..., :start], rotate(x[..., start:end], cos, sin), x[..., end:]]
    return torch.cat(parts, dim=-1).transpose(1, 2)
