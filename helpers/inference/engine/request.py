"""A request to the engine; and the job that serves it: its tokens, its times, what it did when."""

from dataclasses import dataclass, field

from helpers.inference.engine.metrics import Outcome, Span
from helpers.inference.engine.plan import Progress
from helpers.inference.reading import tokens_of
from helpers.inference.sampling import Sampling


@dataclass(frozen=True)
class Request:
    """What a user asks for.

    Attributes:
        number: names the request; each request of a run has another number.
        prompt: its tokens.
        new_tokens: how many tokens to generate at most.
        arrival: when it arrives, in seconds after the run's beginning.
        sampling: how to choose tokens.
        seed: of its random numbers; None: its number.
        stop: tokens that end it.

    Raises:
        ValueError: a number is negative.
        TypeError: a list of tokens is no list of whole numbers.
    """

    number: int
    prompt: tuple[int, ...]
    new_tokens: int
    arrival: float = 0.0
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    stop: frozenset[int] = frozenset()

    def __post_init__(self):
        object.__setattr__(self, "prompt", tuple(tokens_of(self.prompt)))
        object.__setattr__(self, "stop", frozenset(self.stop))
        if self.seed is None:
            object.__setattr__(self, "seed", self.number)
        if self.new_tokens < 0:
            raise ValueError(
                f"request {self.number} asks for {self.new_tokens} new tokens; ask for 0 or more"
            )
        if not 0 <= self.arrival < float("inf"):
            raise ValueError(
                f"request {self.number} arrives at {self.arrival} seconds; the run begins at 0"
            )


class Job:
    """The state of one request while the engine serves it.

    Args:
        context: the most tokens that the model can read in a sequence.

    Attributes:
        tokens: generated so far.
        cached: how many tokens of `known` are in the cache.
        reason: why it ended; "" before that.
    """

    def __init__(self, request: Request, context: int):
        self.request, self.context = request, context
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.spans: list[Span] = []
        self.cached, self.preempted, self.reason = 0, 0, ""
        self._since, self._idle = request.arrival, "waiting"  # what it does until the next step

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def order(self) -> tuple[float, int]:
        """Its place in the queues: by arrival; those of one time by number."""
        return self.request.arrival, self.request.number

    @property
    def known(self) -> int:
        """How many tokens it has: the prompt's and the generated ones."""
        return len(self.request.prompt) + len(self.tokens)

    @property
    def limit(self) -> int:
        """The most tokens that it can have in the cache. The last token is not read."""
        return min(len(self.request.prompt) + self.request.new_tokens - 1, self.context)

    def progress(self, blocks: int = 0) -> Progress:
        """What a policy sees of it."""
        return Progress(
            number=self.number,
            prompt=len(self.request.prompt),
            known=self.known,
            cached=self.cached,
            limit=self.limit,
            blocks=blocks,
        )

    def next_tokens(self, count: int) -> list[int]:
        """The next tokens to compute."""
        every = [*self.request.prompt, *self.tokens]
        return every[self.cached : self.cached + count]

    def computed(self, count: int, kind: str, start: float, end: float):
        """Record that a step from `start` to `end` computed this many of its tokens."""
        self.pause(start)
        self.cached += count
        self.append(Span(kind=kind, start=start, end=end))
        self._since, self._idle = end, "waiting"

    def give_back(self, time: float):
        """Record that it gave its blocks back."""
        self.pause(time)
        self.cached, self._idle = 0, "preempted"
        self.preempted += 1

    def add(self, token: int, time: float):
        """Append a generated token, and end if it is the last."""
        self.tokens.append(token)
        self.times.append(time)
        if token in self.request.stop:
            self.end("stop", time)
        elif len(self.tokens) == self.request.new_tokens:
            self.end("length", time)
        elif self.known > self.context:
            self.end("context", time)

    def end(self, reason: str, time: float):
        if not self.reason:
            self.pause(time)
            self.reason, self.ended = reason, time

    def pause(self, until: float):
        """Record what it did since its last step: it waited, or it was preempted."""
        if until > self._since:
            self.append(Span(kind=self._idle, start=self._since, end=until))
            self._since = until

    def append(self, span: Span):
        """Append a span; extend the last one if it is of the same kind."""
        if self.spans and self.spans[-1].kind == span.kind:
            span = Span(kind=span.kind, start=self.spans.pop().start, end=span.end)
        self.spans.append(span)

    def outcome(self) -> Outcome:
        return Outcome(
            number=self.number,
            prompt=len(self.request.prompt),
            arrival=self.request.arrival,
            tokens=tuple(self.tokens),
            times=tuple(self.times),
            reason=self.reason,
            ended=self.ended,
            spans=tuple(self.spans),
            preempted=self.preempted,
        )
