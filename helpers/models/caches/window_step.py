"""Who sees whom in a step with a sliding window and sinks.

B  sequences in a batch        W  window, s  sinks, C = s + W  slots per sequence
T  new tokens per sequence     e  how many tokens between sinks and window a query does not see
"""

from collections.abc import Sequence

import torch

from helpers.models.caches.kept import RotaryPart

NOTHING = -1  # the place of a slot without a token


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
