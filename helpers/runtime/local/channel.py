"""Messages, some with a file descriptor, over a pair of connected Unix sockets.

The kernel of the operating system keeps what was sent even when the sender dies, so the last words
of a rank arrive. Messages are pickles, and come only from the process at the other end of an
unnamed socket pair: the own parent or child.
"""

import os
import pickle
import selectors
import socket
import struct
import threading
from collections import deque

HEADER = struct.Struct("<I?")  # length of the message in bytes; does a descriptor come with it?
CHUNK = 1 << 18
WAITING = 1 << 26  # bytes posted and not yet taken; with more, a loop that posts would fill memory


class Channel:
    """One end. `fileno()` makes it selectable."""

    def __init__(self, sock: socket.socket):
        self.socket = sock
        self.received = bytearray()
        self.fds: deque[int] = deque()
        self.waiting = bytearray()  # posted, and not yet taken by the other side
        self.lock = threading.Lock()

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self):
        self.socket.close()
        while self.fds:  # of messages that nobody took
            os.close(self.fds.popleft())

    def send(self, *message, fd: int | None = None):
        """Send and wait until it is taken; a copy of `fd` goes along."""
        body = pickle.dumps(message, protocol=5)
        head = HEADER.pack(len(body), fd is not None)
        with self.lock:
            self.flush()
            if fd is None:
                self.socket.sendall(head + body)
            else:
                socket.send_fds(self.socket, [head], [fd])
                self.socket.sendall(body)

    def post(self, *message):
        """Send without waiting: what the other side has no room for goes with the next.

        Once WAITING bytes have piled up, wait until the other side has taken them.
        """
        body = pickle.dumps(message, protocol=5)
        with self.lock:
            self.waiting += HEADER.pack(len(body), False)
            self.waiting += body
            if len(self.waiting) > WAITING:
                self.flush()
                return
            try:
                sent = self.socket.send(self.waiting, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            del self.waiting[:sent]

    def flush(self):
        if self.waiting:
            self.socket.sendall(self.waiting)
            self.waiting.clear()

    def receive(self):
        """Wait for one message: `(message, fd or None)`.

        Raises:
            EOFError: the other side has closed or is gone.
        """
        while (message := self.pop()) is None:
            self.fill()
        return message

    def messages(self):
        """The messages that are there, once the channel is readable. EOFError as in `receive`."""
        self.fill()
        while (message := self.pop()) is not None:
            yield message

    def fill(self):
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, CHUNK, 4)
        except ConnectionResetError:
            data, fds = b"", []
        self.fds.extend(fds)
        if not data:
            raise EOFError("the other side is gone")
        self.received += data

    def pop(self):
        if len(self.received) < HEADER.size:
            return None
        length, has_fd = HEADER.unpack_from(self.received)
        end = HEADER.size + length
        if len(self.received) < end:
            return None
        body = bytes(memoryview(self.received)[HEADER.size : end])
        del self.received[:end]
        return pickle.loads(body), self.fds.popleft() if has_fd else None


def readable(source, seconds: float = 0) -> bool:
    """Is there something to read, after so many seconds at most?"""
    return bool(ready([source], seconds))


def ready(sources, seconds: float) -> set:
    """Those that have something to read, after so many seconds at most."""
    with selectors.DefaultSelector() as selector:  # select itself knows 1,024 descriptors only
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        return {key.fileobj for key, _ in selector.select(seconds)}
