"""Ranks as threads of the test's own process, with messages in memory: for exact answers."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor


class Post:
    """The messages of all ranks; a rank that waits in vain is told so at once."""

    def __init__(self, size: int):
        self.letters = {(a, b): deque() for a in range(size) for b in range(size)}
        self.alive, self.waiting, self.over = size, {}, ""
        self.news = threading.Condition()

    def send(self, way: tuple[int, int], tensor):
        with self.news:
            self.letters[way].append(tensor)
            self.news.notify_all()

    def receive(self, way: tuple[int, int]):
        with self.news:
            self.waiting[way[1]] = way
            while not self.letters[way]:
                vain = not any(self.letters[some] for some in self.waiting.values())
                if not self.over and vain and len(self.waiting) == self.alive:
                    self.over = f"all wait: {sorted(self.waiting.values())}"
                    self.news.notify_all()
                assert not self.over, self.over
                self.news.wait()
            del self.waiting[way[1]]
            return self.letters[way].popleft()

    def left(self, rank: int, failed: str):
        with self.news:
            self.alive -= 1
            self.waiting.pop(rank, None)
            self.over = self.over or failed
            self.news.notify_all()


class Peers:
    """What `helpers.comm.messages.Peers` offers, for a rank that is a thread.

    Attributes:
        sent: (rank, numbers) of each message of this rank, in order.
    """

    def __init__(self, rank: int, size: int, post: Post):
        self.rank, self.size, self.group, self.post = rank, size, "a group", post
        self.left, self.right, self.sent = (rank - 1) % size, (rank + 1) % size, []

    def exchange(self, send=None, to=0, receive=None, source=0):
        if send is not None and send.numel():
            self.sent.append((to, send.numel()))
            self.post.send((self.rank, to), send.clone())
        if receive is not None and receive.numel():
            came = self.post.receive((source, self.rank))
            assert (came.shape, came.dtype) == (receive.shape, receive.dtype)
            receive.copy_(came)


def on_threads(size: int, body) -> list:
    """Call `body(peers)` on every rank at once; no message may be left over."""
    post = Post(size)

    def rank(number):
        failed = f"rank {number} failed"
        try:
            found = body(Peers(number, size, post))
            failed = ""
            return found
        finally:
            post.left(number, failed)

    with ThreadPoolExecutor(size) as pool:
        started = [pool.submit(rank, number) for number in range(size)]
    errors = [error for one in started if (error := one.exception())]
    if errors:  # the others failed because of the first, in most cases
        raise next((e for e in errors if not str(e).startswith("rank ")), errors[0])
    assert not any(post.letters.values()), "messages are left over"
    return [one.result() for one in started]
