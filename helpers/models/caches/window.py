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
from helpers.models.caches.cache import Kept, RotaryPart
from helpers.models.caches.preallocated import Preallocated, Slots

NOTHING = -1  # the place of a slot without a token


class Window(Preallocated):
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
        self.window, self.sinks = window, sinks
        super().__init__(kept, sequences, sinks + window, dtype, device)

    def make_block(self, one: Kept, *shape_and_place) -> Slots:
        return WindowSlots(one, *shape_and_place)

    def plan(self, added: Sequence[int], tokens: int) -> "WindowStep":
        return WindowStep(self.lengths, added, tokens, self.window, self.sinks, self.device)

    def rewind(self, lengths: Sequence[int]):
        """Forget tokens, as long as the window of the new last token is still there."""
        for old, new in zip(self.lengths, lengths, strict=True):
            first_kept, first_seen = old - self.window, max(new - self.window + 1, self.sinks)
            if self.sinks < new < old and first_seen < first_kept:
                raise ValueError(
                    f"cannot rewind a sequence of {old} tokens to {new}: its window would start "
                    f"at token {first_seen}, but tokens before {first_kept} are not kept any more"
                )
        super().rewind(lengths)


class WindowSlots(Slots):
    """One block's rows: (B, heads, C, width) for each tensor that grows.

    Sink n is in slot n. The others take turns: token n is in slot s + (n - s) % W. New rows are
    written when the step ends, because its queries still see the rows that they replace.
    """

    def __init__(self, kept: Kept, *shape_and_place):
        super().__init__(kept, *shape_and_place)
        self.rotary = kept.rotary

    def begin(self, counts: Sequence[int] | None, step: "WindowStep | None"):
        super().begin(counts, step)
        self.new: Sequence[torch.Tensor] = ()

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
        copies = moved and step.sinks > 0
        if copies:
            every = [self.with_sinks(i, rows, angles) for i, rows in enumerate(every)]
        return core(q, *every, step.seen(copies))

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

    def commit(self):
        """Keep what the step has computed. A step that fails leaves everything as before."""
        super().commit()
        for rows, more in zip(self.rows, self.new, strict=bool(self.new)):
            self.place(rows, more)
        self.new = ()


def turn(x: torch.Tensor, start: int, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate a part of each head on: x (B, heads, T, width), by angles (B, T, part/2)."""
    end = start + 2 * cos.shape[-1]
    x = x.transpose(1, 2)  # (B, T, heads, width)
    parts = [x[..., :start], rotate(x[..., start:end], cos, sin), x[..., end:]]
    return torch.cat(parts, dim=-1).transpose(1, 2)


class WindowStep:
    """Plan a step of sequences that have `lengths` tokens and get `added` more.

    Attributes:
        places: each new token's place within the cache, (T,) if all sequences have the same, else
            (B, T).
        dropped: e of each new token, (B, T): its place in the text less that within the cache.
        moved: whether any e is above 0.
        sink_index: (B, s), where each sink is among the C slots and then the T new tokens.
        slots: the rows, columns and slots of the new tokens that the cache keeps.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        added: Sequence[int],
        tokens: int,
        window: int,
        sinks: int,
        device,
    ):
        self.tokens, self.window, self.sinks = tokens, window, sinks
        length = torch.tensor(lengths, dtype=torch.int64, device=device)[:, None]  # (B, 1)
        count = torch.tensor(added, dtype=torch.int64, device=device)[:, None]
        column = torch.arange(tokens, device=device)
        self.real = column < count  # (B, T)
        text = torch.where(self.real, length + column, 0)
        self.dropped = (text + 1 - (sinks + window)).clamp(min=0)
        self.moved = any(
            new and old + new > sinks + window for old, new in zip(lengths, added, strict=True)
        )
        places = text - self.dropped
        same = len(set(lengths)) == 1 and all(new == tokens for new in added)
        self.places = places[0] if same else places
        self.query = text
        new = torch.where(self.real, text, NOTHING)
        self.keys = torch.cat([held_places(length, window, sinks), new], dim=1)  # (B, C + T)
        sink = torch.arange(sinks, device=device)
        fresh = sinks + window + (sink - length).clamp(0, max(tokens - 1, 0))
        self.sink_index = torch.where(sink < length, sink, fresh)
        stays = self.real & ((text < sinks) | (text >= length + count - window))
        row, column = stays.nonzero(as_tuple=True)
        place = text[row, column]
        slot = torch.where(place < sinks, place, sinks + (place - sinks) % window)
        self.slots = row, column, slot
        self._seen: dict[bool, torch.Tensor] = {}
        self._angles: dict[tuple, tuple[torch.Tensor, torch.Tensor]] = {}

    def seen(self, copies: bool) -> torch.Tensor:
        """The mask over slots and new tokens, (B, 1, T, C + T).

        Args:
            copies: whether each query has the sinks once more, behind the others, for itself: then
                (B, 1, T, C + T + T s), and a query sees its own copies only.
        """
        if copies not in self._seen:
            query, key = self.query[..., None], self.keys[:, None]  # (B, T, 1), (B, 1, C + T)
            before = (key != NOTHING) & (key <= query)
            sink = key < self.sinks
            near = key > query - self.window
            seen = before & near & ~sink if copies else before & (near | sink)
            own = torch.eye(self.tokens, dtype=torch.bool, device=seen.device)
            # A padded query sees itself: its result is not used, but must not be NaN.
            padded = own & ~self.real[..., None]  # (B, T, T)
            seen[..., -self.tokens or seen.shape[-1] :] |= padded
            if copies:
                number = torch.arange(self.sinks, device=seen.device)
                known = self.real[..., None] & (number <= query)  # (B, T, s)
                mine = own[..., None] & known[:, :, None]  # (B, T, T, s)
                seen = torch.cat([seen, mine.flatten(2)], dim=2)
            self._seen[copies] = seen[:, None]
        return self._seen[copies]

    def angles(self, part: RotaryPart, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of the rotation by e places, (B, T, width/2) each."""
        key = part.width, part.base, dtype
        if key not in self._angles:
            numbers = torch.arange(0, part.width, 2, dtype=torch.float64)
            frequency = (part.base ** (-numbers / part.width)).to(self.dropped.device)
            angle = self.dropped[..., None] * frequency
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            self._angles[key] = angle.cos().to(wide), angle.sin().to(wide)
        return self._angles[key]


def held_places(length: torch.Tensor, window: int, sinks: int) -> torch.Tensor:
    """The place in the text of the token in each slot, (B, C); `NOTHING` for an empty slot.

    Args:
        length: (B, 1), the tokens of each sequence.
    """
    sink = torch.arange(sinks, device=length.device)
    turn = torch.arange(window, device=length.device)
    # The last one of the tokens s + turn, s + turn + W, … that is before `length`.
    laps = torch.div(length - 1 - sinks - turn, window, rounding_mode="floor")
    last = torch.where(laps >= 0, sinks + turn + laps * window, NOTHING)
    return torch.cat([torch.where(sink < length, sink, NOTHING), last], dim=1)
