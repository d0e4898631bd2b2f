"""A transport as slow as a link that you choose: messages are real, and wait for their planned end.

On one machine, messages and computation share the cores. So overlap cannot help there as it does on
GPUs, where a copy engine or a network card moves the bytes. A paced link needs no core while it
waits: what is left of a step's time shows how much of the messages the computation hides.
"""

import time

import torch

from helpers.comm.transport import GroupTransport, Work
from helpers.comm.volume import sent


class PacedTransport(GroupTransport):
    """A GroupTransport over a link of alpha seconds a call and so many bytes a second.

    One call follows the other on the link. A call ends at its planned time, or when its messages
    have arrived, whichever is later.

    Args:
        alpha: seconds for each call.
        bytes_per_second: of what each rank sends, by the ring formulas of `helpers.comm.volume`.

    Attributes:
        busy: planned seconds of all calls so far.
    """

    def __init__(self, group=None, *, alpha: float = 0.0, bytes_per_second: float = float("inf")):
        super().__init__(group)
        self.alpha, self.bytes_per_second = alpha, bytes_per_second
        self.busy, self.free_at = 0.0, 0.0

    def paced(self, call: str, payload: int, work: Work) -> Work:
        seconds = (
            self.alpha + sent(call, payload, self.size, backend="ring") / self.bytes_per_second
        )
        self.free_at = max(time.perf_counter(), self.free_at) + seconds
        self.busy += seconds
        return Paced(work, self.free_at)

    def all_reduce(self, buffer: torch.Tensor) -> Work:
        return self.paced("all_reduce", buffer.nbytes, super().all_reduce(buffer))

    def maximum(self, buffer: torch.Tensor) -> Work:
        return self.paced("all_reduce", buffer.nbytes, super().maximum(buffer))

    def all_gather(self, every: torch.Tensor, own: torch.Tensor) -> Work:
        return self.paced("all_gather", every.nbytes, super().all_gather(every, own))

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Work:
        return self.paced("reduce_scatter", every.nbytes, super().reduce_scatter(own, every))


class Paced:
    """A call that is over when its messages have arrived and its planned time has passed."""

    def __init__(self, work: Work, end: float):
        self.work, self.end = work, end

    def wait(self):
        self.work.wait()
        if (left := self.end - time.perf_counter()) > 0:
            time.sleep(left)
