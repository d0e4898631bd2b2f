"""A request to the engine: a prompt, how to continue it, and when it arrives."""

from dataclasses import dataclass, field

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
        ValueError: a number is negative, or a list of tokens is no list of whole numbers.
    """

    number: int
    prompt: tuple[int, ...]
    new_tokens: int
    arrival: float = 0.0
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    stop: frozenset[int] = frozenset()

    def __post_init__(self):
        object.__setattr__(self, "prompt", tuple(int(token) for token in self.prompt))
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
