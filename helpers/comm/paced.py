"""A transport as slow as a link that you choose: messages are real, and wait for their planned end.

On one machine, messages and computation share the cores. So overlap cannot help there as it does on
GPUs, where a copy engine or a network card moves the bytes. A paced link needs no core while it
waits: what is left of a step's time shows how much of the messages the computation hides.
"""

import time
from collections import deque
from dataclasses import replace
from functools import partial

import torch

from helpers.comm.transport import GroupTransport, Messages, Work
from helpers.comm.volume import sent
from helpers.measure.trace import Span, Trace

REMEMBERED = 100_000  # calls


class Link:
    """What a rank sends on. Transports that share it send one call after another."""

    free_at = 0.0  # seconds of time.perf_counter()


class PacedTransport(GroupTransport):
    """A GroupTransport over a link of alpha seconds a call and so many bytes a second.

    One call follows the other on the link. A call ends at its planned time, or when its messages
    have arrived, whichever is later.

    Args:
        alpha: seconds for each call.
        bytes_per_second: of what each rank sends, by the ring formulas of `helpers.comm.volume`.
        link: one of its own by default.

    Attributes:
        busy: planned seconds of all calls so far.
        exposed: of these, the seconds that were still to come when this rank began to wait. The
            rest, `busy - exposed`, was hidden behind other work.
        calls: the last calls: (name, start, end) in planned seconds of `time.perf_counter`.
    """

    def __init__(
        self,
        group=None,
        *,
        alpha: float = 0.0,
        bytes_per_second: float = float("inf"),
        link: Link | None = None,
    ):
        super().__init__(group)
        self.alpha, self.bytes_per_second = alpha, bytes_per_second
        self.busy, self.exposed, self.link = 0.0, 0.0, link or Link()
        self.calls: deque[tuple[str, float, float]] = deque(maxlen=REMEMBERED)

    def paced(self, call: str, payload: int, work: Work, nbytes: float | None = None) -> Work:
        if nbytes is None:
            nbytes = sent(call, payload, self.size, backend="ring")
        seconds = self.alpha + nbytes / self.bytes_per_second
        start = max(time.perf_counter(), self.link.free_at)
        self.link.free_at = end = start + seconds
        self.busy += seconds
        self.calls.append((call, start, end))
        return Paced(self, work, end)

    def on(self, found: Trace) -> Trace:
        """A trace of this rank, with the planned calls of this link as its communication.

        Call it soon after the trace, on the same rank.
        """
        since = time.time() - time.perf_counter() - found.began  # of this clock's zero
        kept = [span for span in found.spans if span.lane != "communication"]
        last = max((span.end for span in kept), default=0.0)
        kept += [
            Span(
                name=f"link:{call}",
                lane="communication",
                kind="communication",
                start=start + since,
                seconds=end - start,
            )
            for call, start, end in self.calls
            if 0 <= start + since <= last
        ]
        return replace(found, spans=sorted(kept, key=lambda span: span.start))

    def all_reduce(self, buffer: torch.Tensor) -> Work:
        return self.paced("all_reduce", buffer.nbytes, super().all_reduce(buffer))

    def maximum(self, buffer: torch.Tensor) -> Work:
        return self.paced("all_reduce", buffer.nbytes, super().maximum(buffer))

    def all_gather(self, every: torch.Tensor, own: torch.Tensor) -> Work:
        return self.paced("all_gather", every.nbytes, super().all_gather(every, own))

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Work:
        return self.paced("reduce_scatter", every.nbytes, super().reduce_scatter(own, every))

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor, sizes=(None, None)) -> Work:
        _, to = sizes
        away = None if to is None else (sum(to) - to[self.rank]) * sent.itemsize
        work = super().all_to_all(received, sent, sizes)
        return self.paced("all_to_all", sent.nbytes, work, away)

    def broadcast(self, tensor: torch.Tensor, source: int = 0):
        work = Messages([], partial(super().broadcast, tensor, source))
        self.paced("broadcast", tensor.nbytes, work).wait()

    def begin(self, send=None, to: int = 0, receive=None, source: int = 0) -> list[Work]:
        """Start two messages: the link carries both ways at once, so the larger one counts."""
        works = super().begin(send, to, receive, source)
        largest = max((one.nbytes for one in (send, receive) if one is not None), default=0)
        return [self.paced("send", largest, Messages(works))] if works else []


class Paced:
    """A call that is over when its messages have arrived and its planned time has passed."""

    def __init__(self, link: PacedTransport, work: Work, end: float):
        self.link, self.work, self.end = link, work, end

    def wait(self):
        self.link.exposed += max(0.0, self.end - time.perf_counter())
        self.work.wait()
        if (left := self.end - time.perf_counter()) > 0:
            time.sleep(left)
