"""Ranks as threads of one process: what they send is real, and no process is started.

A result is NaN until the rank has waited for it. A message is bound to the receive that was posted
for it, whatever the order of the waits is.
"""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import MappingProxyType

import torch

SECONDS = 60  # a rank that waits so long for the others has missed a message


@contextmanager
def one_thread():
    """Let PyTorch compute on the calling thread alone: small products gain nothing from others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Ranks:
    """What the threads share: a barrier for collectives, and the messages between two ranks."""

    def __init__(self, size: int):
        self.size = size
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.given: list = [None] * size
        self.changed = threading.Condition()
        self.messages = defaultdict(list)  # (source, target) -> tensors in the order of the sends

    def exchange(self, rank: int, what) -> list:
        self.given[rank] = what
        self.barrier.wait()
        every = list(self.given)
        self.barrier.wait()
        return every

    def run(self, function) -> list:
        """Call `function(rank)` in a thread for each rank; their results, or the first error."""

        def one(rank):
            torch.set_num_threads(1)  # each thread has its own number
            try:
                return function(rank)
            except BaseException:
                self.barrier.abort()
                with self.changed:
                    self.changed.notify_all()
                raise

        with one_thread(), ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(one, rank) for rank in range(self.size)]
        errors = [e for e in (future.exception() for future in futures) if e is not None]
        errors.sort(key=lambda e: isinstance(e, threading.BrokenBarrierError))
        if errors:
            raise errors[0]
        return [future.result() for future in futures]


class Work:
    def __init__(self, finish):
        self.finish = finish

    def wait(self):
        self.finish()


class Transport:
    """The collectives of one rank, as a GroupTransport's. `log` has a word for each."""

    def __init__(self, ranks: Ranks, rank: int):
        self.ranks, self.rank, self.size = ranks, rank, ranks.size
        self.log: list[str] = []

    def start(self, name: str, own: torch.Tensor, into: torch.Tensor, result) -> Work:
        assert own.is_contiguous()
        assert into.is_contiguous()
        self.log.append(name)
        every = self.ranks.exchange(self.rank, (name, own.detach().clone()))
        assert {one for one, _ in every} == {name}
        found = result([tensor for _, tensor in every])
        assert found.shape == into.shape
        into.fill_(torch.nan)
        return Work(lambda: into.copy_(found))

    def all_reduce(self, buffer):
        return self.start("all_reduce", buffer, buffer, lambda every: sum(every[1:], every[0]))

    def maximum(self, buffer):
        return self.start("maximum", buffer, buffer, lambda every: torch.stack(every).amax(0))

    def all_gather(self, every, own):
        return self.start("all_gather", own, every, torch.stack)

    def reduce_scatter(self, own, every):
        rows = lambda found: sum(one[self.rank] for one in found)  # noqa: E731
        return self.start("reduce_scatter", every, own, rows)


class Link:
    """The messages of one rank, as a PointToPoint's."""

    channels = MappingProxyType({})  # none has a group of its own

    def __init__(self, ranks: Ranks, rank: int):
        self.ranks, self.rank, self.size = ranks, rank, ranks.size
        self.posted = defaultdict(int)  # source -> receives so far
        self.leaving: list = []

    def send(self, tensor, to):
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        copy = tensor.clone()
        self.leaving.append((tensor, copy))
        if tensor.numel():
            with self.ranks.changed:
                self.ranks.messages[self.rank, to].append(copy)
                self.ranks.changed.notify_all()

    def receive(self, buffer, source):
        assert buffer.is_contiguous()
        if not buffer.numel():
            return None
        number, messages = self.posted[source], self.ranks.messages[source, self.rank]
        self.posted[source] += 1
        buffer.fill_(torch.nan)

        def arrive():
            there = lambda: len(messages) > number or self.ranks.barrier.broken  # noqa: E731
            with self.ranks.changed:
                assert self.ranks.changed.wait_for(there, SECONDS), "no message"
                if len(messages) <= number:
                    raise threading.BrokenBarrierError
            assert messages[number].shape == buffer.shape
            buffer.copy_(messages[number])

        return Work(arrive)

    def finish(self):
        assert all(torch.equal(tensor, copy) for tensor, copy in self.leaving)  # left as they were
        self.leaving = []
