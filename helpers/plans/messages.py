"""Communication volume: a step's messages as data, and the bytes that a rank sends for them.

Ring collectives over N ranks, for a payload of S bytes (the whole buffer, as in the ledger):

    all_reduce                     2 (N-1) messages one after another      2 (N-1)/N S bytes
    all_gather, reduce_scatter       (N-1)                                   (N-1)/N S
    all_to_all                       (N-1)                                   (N-1)/N S
    send                             1                                       S

These are the least bytes. A backend may send more: `helpers.comm.volume` counts gloo's own calls.

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
MPICH".
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

ROUNDS = {  # times around the ring
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
}


@dataclass(frozen=True, kw_only=True)
class Message:
    """Equal messages of one rank in a step.

    Attributes:
        axis: of the mesh: "dp", "tp", "pp", "cp", "ep"; several together as "dp ep"; "world" for
            all ranks; "ends" for the first and the last stage of a pipeline with more stages
            between them.
        call: one of ROUNDS, or "send".
        payload: bytes of one message: for an all-gather the result, for a reduce-scatter the input.
        times: how many of them.
        ranks: N, of the group.
        what: what they carry: "gradients", "parameters", "activations", "loss", …

    Raises:
        ValueError: no such call.
    """

    axis: str
    call: str
    payload: float
    times: int = 1
    ranks: int
    what: str = ""

    def __post_init__(self):
        if self.call not in (*ROUNDS, "send"):
            raise ValueError(f"{self.call!r} is none of {', '.join(ROUNDS)}, send")

    @property
    def sent(self) -> float:
        """Bytes that the rank sends for all of them."""
        return self.times * self.payload * ring_factor(self.call, self.ranks)

    @property
    def steps(self) -> int:
        """Messages one after another on the wire, for all of them."""
        return self.times * (ROUNDS[self.call] * (self.ranks - 1) if self.call in ROUNDS else 1)


def ring_factor(call: str, ranks: float) -> float:
    """Bytes that a rank of a ring sends for each byte of the payload; a send has no ring."""
    share = 1.0 if ranks == math.inf else (ranks - 1) / ranks
    return ROUNDS[call] * share if call in ROUNDS else 1.0


def wire(messages: Iterable[Message], by: str = "axis") -> dict[str, float]:
    """Bytes that the rank sends: {axis: bytes}, or by another attribute: "call" or "what"."""
    found: dict[str, float] = {}
    for one in messages:
        key = getattr(one, by)
        found[key] = found.get(key, 0.0) + one.sent
    return found


def together(messages: Iterable[Message]) -> list[Message]:
    """Add up the times of equal messages, and leave out groups of one rank and empty messages."""
    times: dict[tuple, int] = {}
    for one in messages:
        if one.ranks > 1 and one.payload and one.times:
            key = (one.axis, one.call, one.payload, one.ranks, one.what)
            times[key] = times.get(key, 0) + one.times
    return [
        Message(axis=axis, call=call, payload=payload, times=n, ranks=ranks, what=what)
        for (axis, call, payload, ranks, what), n in times.items()
    ]
