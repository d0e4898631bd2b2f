"""The memory of fully sharded training, moment by moment: what a larger unit costs.

U  bytes of a unit's parameters      N  ranks that share the parameters

The moments are those of FSDP2 (`torch.distributed.fsdp.fully_shard`). A gather fills a buffer and
is then copied into the parameters. In the backward, the gather of the next unit starts before it is
needed, and the gradients of a unit are copied into a buffer for the reduce-scatter. The buffer is
freed when the next unit needs its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The bytes that one rank holds at one moment of a step, by kind.

    Attributes:
        name: what happens: "forward of unit 2", "reduce of unit 0", …
        states: the shards of parameters and optimizer state, and of the gradients so far.
        gathered: whole parameters, of units in use.
        fetched: the buffer of a gather.
        gradients: whole gradients of one unit.
        sending: the buffer of a reduce-scatter, and its result.
    """

    name: str
    states: float
    gathered: float = 0.0
    fetched: float = 0.0
    gradients: float = 0.0
    sending: float = 0.0

    @property
    def total(self) -> float:
        """All kinds together, without activations."""
        return self.states + self.gathered + self.fetched + self.gradients + self.sending


def moments(units: Sequence[float], ranks: int, optimizer: float = 2.0) -> list[Moment]:
    """List the moments of one step, in order, without activations.

    Every unit is freed after its forward. Gradients start at none.

    Args:
        units: U of each unit, in the order of the forward.
        ranks: N.
        optimizer: bytes of optimizer state for each byte of parameters: 2 for Adam's two moments.

    Raises:
        ValueError: no units, or fewer than 2 ranks: then nothing is gathered.
    """
    if not units or ranks < 2:
        raise ValueError(f"{len(units)} units on {ranks} ranks: name a unit, and at least 2 ranks")
    own = (1 + optimizer) * sum(units) / ranks
    found, before = [], 0.0
    for k, size in enumerate(units):
        # the buffer of the unit before is freed when the next buffer has been filled
        found.append(Moment(name=f"gather of unit {k}", states=own, gathered=size, fetched=size))
        found.append(Moment(name=f"forward of unit {k}", states=own, gathered=size, fetched=size))
    made = 0.0  # bytes of gradient shards so far
    for k in reversed(range(len(units))):
        size, following = units[k], units[k - 1] if k else 0.0
        found.append(
            Moment(
                name=f"backward of unit {k}",
                states=own + made,
                gathered=size,
                fetched=following,
                gradients=size,
                sending=before,
            )
        )
        found.append(
            Moment(
                name=f"reduce of unit {k}",
                states=own + made,
                fetched=following,
                gradients=size,
                sending=size + size / ranks,
            )
        )
        made, before = made + size / ranks, size
    return found


def peak(units: Sequence[float], ranks: int, optimizer: float = 2.0) -> Moment:
    """Return the moment with the most bytes; the first of several."""
    return max(moments(units, ranks, optimizer), key=lambda moment: moment.total)
