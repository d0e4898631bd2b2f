"""Ranks as threads of the test's own process, with messages through queues: for exact answers."""

import queue
from concurrent.futures import ThreadPoolExecutor

PATIENCE = 20  # seconds without a message after which a rank counts as hanging


class Peers:
    """What `helpers.comm.messages.Peers` offers, for a rank that is a thread.

    Attributes:
        sent: (rank, numbers) of each message of this rank, in order.
    """

    def __init__(self, rank: int, size: int, messages: dict):
        self.rank, self.size, self.group, self.messages = rank, size, "a group", messages
        self.left, self.right, self.sent = (rank - 1) % size, (rank + 1) % size, []

    def exchange(self, send=None, to=0, receive=None, source=0):
        if send is not None and send.numel():
            self.sent.append((to, send.numel()))
            self.messages[self.rank, to].put(send.clone())
        if receive is not None and receive.numel():
            came = self.messages[source, self.rank].get(timeout=PATIENCE)
            assert (came.shape, came.dtype) == (receive.shape, receive.dtype)
            receive.copy_(came)


def on_threads(size: int, body) -> list:
    """Call `body(peers)` on every rank at once; no message may be left over."""
    messages = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    with ThreadPoolExecutor(size) as pool:
        started = [pool.submit(body, Peers(rank, size, messages)) for rank in range(size)]
    found = [one.result() for one in started]
    assert all(left.empty() for left in messages.values())
    return found
