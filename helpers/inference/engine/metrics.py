"""The record of a run: what happened to each request and in each step, and the usual figures of it.

TTFT  time to first token: from a request's arrival to its first token, in seconds
TPOT  time per output token: the mean time between a request's tokens after the first, in seconds
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.inference.engine.plan import Work

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = (0.5, 0.9, 0.99)
COLUMNS = {  # of a table of requests: the attribute of an `Outcome`
    **{"request": "number", "arrival": "arrival", "prompt": "prompt", "tokens": "tokens"},
    **{"first token": "first", "per token": "per_token", "stutter": "stutter"},
    **{"latency": "latency", "preempted": "preempted", "reason": "reason"},
}


@dataclass(frozen=True, kw_only=True)
class Span:
    """What a request did for some time.

    Attributes:
        kind: "waiting", "prefill", "decode" or "preempted".
        start, end: seconds.
    """

    kind: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a request.

    Attributes:
        number: the request's number.
        prompt: the tokens of its prompt, counted.
        arrival: when it arrived, in seconds.
        tokens: what was generated.
        times: when each token was there, in seconds.
        reason: why it ended: "stop", "length", "context" or "error: …".
        ended: when it ended, in seconds.
        spans: what it did, in order of time, without gaps.
        preempted: how many times it gave its blocks back.
    """

    number: int
    prompt: int
    arrival: float
    tokens: tuple[int, ...]
    times: tuple[float, ...]
    reason: str
    ended: float
    spans: tuple[Span, ...]
    preempted: int = 0

    @property
    def first(self) -> float:
        """TTFT, in seconds; NaN without a token."""
        return self.times[0] - self.arrival if self.times else math.nan

    @property
    def per_token(self) -> float:
        """TPOT, in seconds; NaN with fewer than two tokens."""
        if len(self.times) < 2:
            return math.nan
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)

    @property
    def stutter(self) -> float:
        """The longest time between two tokens, in seconds; NaN with fewer than two tokens."""
        gaps = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        return max(gaps, default=math.nan)

    @property
    def latency(self) -> float:
        """From the arrival to the end, in seconds."""
        return self.ended - self.arrival


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the engine did in one step.

    Attributes:
        start, end: seconds.
        work: what it computed.
        running, waiting: requests in the step, and those that wait for a later one.
        used: blocks that hold tokens.
        reserved: blocks that no other request could use: `used`, or more.
        preempted: requests that gave their blocks back.
    """

    start: float
    end: float
    work: Work
    running: int
    waiting: int
    used: int
    reserved: int
    preempted: int = 0


@dataclass(frozen=True, kw_only=True)
class Served:
    """The record of a run.

    Attributes:
        policy: what scheduled it.
        requests: the outcomes, by the requests' numbers.
        steps: in order of time.
        blocks: all blocks of the cache.
    """

    policy: object
    requests: Sequence[Outcome]
    steps: Sequence[Step]
    blocks: int

    @property
    def tokens(self) -> int:
        """The generated tokens."""
        return sum(len(outcome.tokens) for outcome in self.requests)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last end."""
        if not self.requests:
            return 0.0
        began = min(outcome.arrival for outcome in self.requests)
        return max(outcome.ended for outcome in self.requests) - began

    @property
    def throughput(self) -> float:
        """Generated tokens per second; NaN if no time passed."""
        return self.tokens / self.seconds if self.seconds else math.nan

    def frame(self) -> "pd.DataFrame":
        """Make a table with a row for each request; times in seconds."""
        import pandas as pd

        columns = {
            name: [getattr(outcome, attribute) for outcome in self.requests]
            for name, attribute in COLUMNS.items()
        }
        columns["tokens"] = [len(tokens) for tokens in columns["tokens"]]
        return pd.DataFrame(columns).set_index("request")

    def percentiles(self, quantiles: Sequence[float] = QUANTILES) -> "pd.DataFrame":
        """Make a table of the requests' TTFT, TPOT, stutter and latency, in seconds.

        A quantile between two requests is interpolated. A request without the figure is left out;
        for example, one that ended without a token has no TTFT.
        """
        table = self.frame()
        table["latency"] = table["latency"].where(table["tokens"] > 0)
        names = ["first token", "per token", "stutter", "latency"]
        table = table[names].astype(float).quantile(quantiles)
        return table.set_axis([f"p{100 * quantile:g}" for quantile in quantiles])

    def plot(self, **options):
        """Draw each request as a row over time, and the cache's fill below. Returns a Picture."""
        from helpers.plots.serving import serving

        rows = {
            f"request {outcome.number}": [(s.kind, s.start, s.end) for s in outcome.spans]
            for outcome in self.requests
        }
        curves = {
            "reserved": [(step.start, step.end, step.reserved) for step in self.steps],
            "used": [(step.start, step.end, step.used) for step in self.steps],
        }
        return serving(rows, curves, capacity=self.blocks, **{"title": str(self.policy), **options})

    def _repr_png_(self):
        return self.plot()._repr_png_()

    def __repr__(self):
        ended = {}
        for outcome in self.requests:
            word = outcome.reason.partition(":")[0]
            ended[word] = ended.get(word, 0) + 1
        reasons = ", ".join(f"{count} {word}" for word, count in ended.items())
        return (
            f"{self.policy}: {len(self.requests)} requests ({reasons}), {self.tokens} tokens in "
            f"{self.seconds:.3g} s and {len(self.steps)} steps, {self.throughput:.3g} tokens/s"
        )
