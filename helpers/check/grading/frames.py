"""Messages through a pipe: a length, then so many bytes."""

import os
import select
import struct
import time

LENGTH = struct.Struct("<Q")
LARGEST = 64 << 20  # bytes of a message
TURN = 0.1  # seconds between two looks


class Silence(Exception):
    """No whole message has come in time."""


class Ended(Exception):
    """The other side has closed the pipe."""


def write(file: int, data: bytes, end: float | None = None, alive=lambda: True):
    """Write a message to the file descriptor.

    Args:
        end: on the monotonic clock; None: no limit. A reader that stops must not stop the writer.
        alive: asked several times a second; when it returns False, the writing ends.

    Raises:
        Silence: the time is over. Ended: nobody reads any more, or `alive` says no.
    """
    rest = memoryview(LENGTH.pack(len(data)) + data)
    try:
        while rest:
            if ready([], [file], end, alive):
                rest = rest[os.write(file, rest[: select.PIPE_BUF]) :]  # so much never blocks
    except OSError as error:
        raise Ended from error


def read(file: int, end: float | None = None, alive=lambda: True) -> bytes:
    """Read a message from the file descriptor.

    Args:
        end: of the whole message, on the monotonic clock; None: no limit.
        alive: as for `write`.

    Raises:
        Silence: the time is over. Ended: the pipe is closed, or `alive` says no.
        ValueError: the message would be larger than LARGEST.
    """
    (size,) = LENGTH.unpack(exactly(file, LENGTH.size, end, alive))
    if size > LARGEST:
        raise ValueError(f"a message of {size:,} bytes; at most {LARGEST:,} are read")
    return exactly(file, size, end, alive)


def exactly(file: int, size: int, end: float | None, alive) -> bytes:
    found = bytearray()
    while len(found) < size:
        if ready([file], [], end, alive):
            more = os.read(file, min(size - len(found), 1 << 20))
            if not more:
                raise Ended
            found += more
    return bytes(found)


def ready(readers: list[int], writers: list[int], end: float | None, alive) -> bool:
    """Whether one of the files can be read or written now; wait for it a moment."""
    if end is not None and time.monotonic() > end:
        raise Silence
    if not alive():
        raise Ended
    return any(select.select(readers, writers, [], TURN))
