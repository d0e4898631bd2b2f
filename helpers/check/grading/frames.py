"""Messages through a pipe: a length, then so many bytes."""

import os
import select
import struct
import time

LENGTH = struct.Struct("<Q")
LARGEST = 256 << 20  # bytes of a message


class Silence(Exception):
    """No whole message has come in time."""


class Ended(Exception):
    """The other side has closed the pipe."""


def write(file: int, data: bytes):
    """Write a message to the file descriptor.

    Raises:
        Ended: nobody reads any more.
    """
    rest = memoryview(LENGTH.pack(len(data)) + data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError as error:
        raise Ended from error


def read(file: int, seconds: float | None = None, alive=lambda: True) -> bytes:
    """Read a message from the file descriptor.

    Args:
        seconds: for the whole message; None: no limit.
        alive: asked several times a second; when it returns False, the reading ends.

    Raises:
        Silence: the time is over. Ended: the pipe is closed, or `alive` says no.
        ValueError: the message would be larger than LARGEST.
    """
    end = None if seconds is None else time.monotonic() + seconds
    (size,) = LENGTH.unpack(exactly(file, LENGTH.size, end, alive))
    if size > LARGEST:
        raise ValueError(f"a message of {size:,} bytes; at most {LARGEST:,} are read")
    return exactly(file, size, end, alive)


def exactly(file: int, size: int, end: float | None, alive) -> bytes:
    found = bytearray()
    while len(found) < size:
        if end is not None and time.monotonic() > end:
            raise Silence
        if not alive():
            raise Ended
        if select.select([file], [], [], 0.1)[0]:
            more = os.read(file, min(size - len(found), 1 << 20))
            if not more:
                raise Ended
            found += more
    return bytes(found)
