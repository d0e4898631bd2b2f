"""Send messages, some with a file descriptor, over a pair of connected Unix sockets.

The operating system keeps sent bytes even if the sender dies, so a rank's last messages arrive.
Messages are pickles. They come only from the process at the other end of an unnamed socket pair:
the parent or a child of this process.
"""

import os
import pickle
import selectors
import socket
import struct
import threading
from collections import deque

HEADER = struct.Struct("<I?")  # bytes of the message; does a descriptor follow?
CHUNK = 1 << 18
WAITING = 1 << 26  # unread bytes after which `post` waits, so that a loop cannot fill the memory


class Channel:
    """One end of the pair. `fileno()` makes it selectable."""

    def __init__(self, sock: socket.socket):
        self.socket = sock
        self.received = bytearray()
        self.fds: deque[int] = deque()
        self.waiting = bytearray()  # posted, but not read by the other side
        self.lock = threading.Lock()

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self):
        self.socket.close()
        while self.fds:  # of messages that this process has not read
            os.close(self.fds.popleft())

    def send(self, *message, fd: int | None = None):
        """Send a message, with a copy of `fd`, and wait until the other side has room for it."""
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
        """Send without waiting; bytes without room on the other side go with the next message.

        If more than WAITING bytes are unread, wait until the other side has read them.
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
        """Wait for one message; return `(message, fd or None)`.

        Raises:
            EOFError: the other side has closed or is gone.
        """
        while (message := self.pop()) is None:
            self.fill()
        return message

    def messages(self):
        """Yield the messages that have arrived, once the channel is readable. Raises EOFError."""
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
    """Can this source be read within so many seconds?"""
    return bool(ready([source], seconds))


def ready(sources, seconds: float) -> set:
    """Return the sources that can be read within so many seconds."""
    with selectors.DefaultSelector() as selector:  # select.select stops at 1,024 descriptors
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        return {key.fileobj for key, _ in selector.select(seconds)}
