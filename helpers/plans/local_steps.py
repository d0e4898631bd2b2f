"""Replicas that step alone and average from time to time: which updates send what, as data.

P  parameters        N  replicas        H  updates from one average to the next        e  bytes

    data parallel                   each update      2 P e (N-1)/N
    Local SGD, DiLoCo               each H-th        2 P e (N-1)/N; the mean of an update is 1/H
    with F fragments, one phase each                 the same mean, and a peak of 1/F (F <= H)
    codes of b bits in place of sums                 P (N-1) b/8, and scales

Fragments are the strided ones of Streaming DiLoCo, but replicas wait for an average: in the paper
they make more updates meanwhile.

Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little", arXiv:1805.09767, algorithm
1. Douillard et al. 2023, "DiLoCo", arXiv:2311.08105, algorithm 1. Douillard et al. 2025, "Streaming
DiLoCo with overlapping communication", arXiv:2501.18512, section 2 (fragments, codes of 4 bits).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from helpers.plans.messages import Message
from helpers.plans.slow_links import Form, coded_bytes


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """When the fragments of a model are averaged.

    Attributes:
        every: H.
        fragments: F. Fragment f has the phase f H / F, rounded down: it is averaged after this
            update (but 0), and then after each H more.

    Raises:
        ValueError: a number is not a whole number from 1.
    """

    every: int
    fragments: int = 1

    def __post_init__(self):
        for name in ("every", "fragments"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number, 1 or more, not {value!r}")

    def due(self, update: int) -> list[int]:
        """The fragments to average after this update; the first update is 1."""
        phases = [f * self.every // self.fragments for f in range(self.fragments)]
        return [f for f, phase in enumerate(phases) if (update - phase) % self.every == 0]

    def messages(
        self,
        numbers: Sequence[int],
        ranks: int,
        update: int,
        *,
        number_bytes: float = 4,
        form: Form | None = None,
        axis: str = "dp",
    ) -> list[Message]:
        """The messages of the averages after one update.

        Args:
            numbers: of parameters in each fragment.
            ranks: N.
            number_bytes: e, of a number in the messages; 2 for bfloat16.
            form: bits of a code, and the numbers in a block, in place of e: (4, 256).
        """
        call, rows = ("all_gather", ranks) if form else ("all_reduce", 1)
        of = {"axis": axis, "call": call, "ranks": ranks, "what": "outer gradients"}
        payloads = [rows * coded_bytes(numbers[f], form, number_bytes) for f in self.due(update)]
        return [Message(payload=payload, **of) for payload in payloads]
