"""What users see: when each token of each stream comes, and the longest time without one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A prompt that arrives.

    Attributes:
        prompt: its tokens.
        new_tokens: how many to generate, at least 1.
        at: when it arrives, in seconds after the beginning.
    """

    prompt: tuple[int, ...]
    new_tokens: int
    at: float = 0.0


@dataclass
class Stream:
    """The new tokens of one request, and when each of them came.

    Attributes:
        arrival: in seconds after the beginning, like all times.
        tokens, times: of each new token.
    """

    arrival: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        """The time to first token, in seconds."""
        return self.times[0] - self.arrival

    @property
    def gaps(self) -> list[float]:
        """The seconds between neighbouring tokens."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def stutter(self) -> float:
        """The longest gap, in seconds; 0 with fewer than two tokens."""
        return max(self.gaps, default=0.0)


@dataclass
class Streams:
    """The streams of a run, by request.

    Attributes:
        streams: {request: Stream}.
        interrupted: for each decoding step, how many tokens of prompts this rank has read since
            the step before it, while other requests were waiting for their next token.
        handed: bytes that were handed over for each request that this rank has read.
    """

    streams: Mapping[int, Stream] = field(default_factory=dict)
    interrupted: list[int] = field(default_factory=list)
    handed: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of_all(cls, ranks: Sequence["Streams"]) -> "Streams":
        """Join what each rank returned."""
        every = cls({}, [], {})
        for rank in ranks:
            every.streams.update(rank.streams)
            every.interrupted.extend(rank.interrupted)
            every.handed.update(rank.handed)
        every.streams = dict(sorted(every.streams.items()))
        return every

    def frame(self) -> "pd.DataFrame":
        """Make a table with a row for each request; times in seconds."""
        import pandas as pd

        rows = [
            {
                "request": number,
                "arrival": stream.arrival,
                "tokens": len(stream.tokens),
                "first token": stream.first,
                "median gap": float(pd.Series(stream.gaps, dtype=float).median()),
                "longest gap": stream.stutter,
            }
            for number, stream in self.streams.items()
        ]
        return pd.DataFrame(rows).set_index("request") if rows else pd.DataFrame()

    def gap(self, quantile: float) -> float:
        """A quantile of the gaps of all streams, in seconds. 1 is the longest gap of all."""
        import numpy as np

        return float(np.quantile([g for s in self.streams.values() for g in s.gaps], quantile))
