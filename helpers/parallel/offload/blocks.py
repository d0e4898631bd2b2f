"""A file in equal blocks, past the page cache; blocks change while others are read and written."""

import errno
import mmap
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from xxhash import xxh3_64_intdigest as checksum

from helpers.measure.trace import Trace
from helpers.state.seal import BrokenCheckpoint

PAGE = 4096  # O_DIRECT wants sizes, places in the file and addresses that are multiples of it
DIRECT, ADVISED, CACHED = "O_DIRECT", "posix_fadvise(DONTNEED)", "through the page cache"


class BlockFile:
    """A file of `count` blocks. Its bytes do not stay in the page cache, where the system allows.

    Args:
        path: of the file. Without `existing` it is made, with its folder, and with room on the disk
            for all blocks: a full disk is found before the training starts.
        block: bytes of a block, a multiple of 4096.

    Attributes:
        way: "O_DIRECT"; "posix_fadvise(DONTNEED)" where the file system has no O_DIRECT; "through
            the page cache" where the system has neither.

    Raises:
        OSError: the folder is read-only, or the disk is full.
        BrokenCheckpoint: an existing file has another size.
    """

    def __init__(self, path: Path, block: int, count: int, *, existing: bool = False):
        self.path, self.block, self.count = path, block, count
        if not existing:
            self.make()
            return
        self.handle, self.way = opened(path, os.O_RDWR)
        if (size := os.fstat(self.handle).st_size) != block * count:
            self.close()
            raise BrokenCheckpoint(
                f"{path} has {size:,} bytes, not {block * count:,}: the file is torn"
            )

    def make(self):
        size, self.handle = self.block * self.count, None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.handle, self.way = opened(self.path, os.O_RDWR | os.O_CREAT)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.handle, 0, size)
            os.ftruncate(self.handle, size)
        except OSError as error:
            if self.handle is not None:
                self.close()
                self.path.unlink()
            raise OSError(
                error.errno,
                f"{self.path} needs {size:,} bytes, but the disk refuses ({error.strerror}): free "
                "some room, or choose a folder that this process may write to",
            ) from error

    def read(self, k: int, buffer: mmap.mmap):
        """Read block k into a buffer of a block's size."""
        self.whole(os.preadv, k, buffer)

    def write(self, k: int, buffer: mmap.mmap) -> int:
        """Write block k. Returns its checksum."""
        self.whole(os.pwritev, k, buffer)
        return checksum(buffer)

    def whole(self, call: Callable, k: int, buffer: mmap.mmap):
        """Read or write a whole block: the system may do it in several calls."""
        done, view = 0, memoryview(buffer)
        while done < self.block:
            moved = call(self.handle, [view[done:]], k * self.block + done)
            if moved == 0:
                raise BrokenCheckpoint(f"{self.path} ends inside block {k}: the file is torn")
            done += moved
        if self.way == ADVISED:
            if call is os.pwritev:
                os.fdatasync(self.handle)  # the system drops only what the disk has
            os.posix_fadvise(self.handle, k * self.block, self.block, os.POSIX_FADV_DONTNEED)

    def flush(self):
        """Wait until the disk has every block."""
        os.fsync(self.handle)

    def close(self):
        os.close(self.handle)


def opened(path: Path, flags: int) -> tuple[int, str]:
    """Open a file past the page cache, if that can be. Returns its handle and the way."""
    if hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600), DIRECT
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    handle = os.open(path, flags, 0o600)
    return handle, ADVISED if hasattr(os, "posix_fadvise") else CACHED


class Stream:
    """A fixed number of buffers through which all blocks of a file pass.

    While block k changes, block k+1 is read and block k-1 is written, each by a thread of its own.

    Args:
        block: bytes of a buffer.
        buffers: how many, 1 or more. With 3, reads, updates and writes overlap. With 1, none does.

    Attributes:
        nbytes: of all buffers.
        trace: of the last pass, with the lanes "read", "update" and "write".
        read, written: bytes of all passes.
    """

    def __init__(self, block: int, buffers: int):
        self.buffers = [mmap.mmap(-1, block) for _ in range(buffers)]
        self.nbytes = block * buffers
        self.threads = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]
        self.trace = Trace()
        self.read = self.written = 0

    def run(
        self,
        change: Callable[[int, mmap.mmap], object],
        count: int,
        source: BlockFile | None = None,
        target: BlockFile | None = None,
    ) -> list[int]:
        """Pass all blocks through the buffers: read, change, write.

        Args:
            change: `change(k, buffer)` changes block k in place, in the order of k.
            source: None: the buffers have arbitrary content.
            target: None: nothing is written.

        Returns:
            The checksums of the blocks that were written.

        Raises:
            OSError, BrokenCheckpoint: a read or write failed. No other is running then.
        """
        self.trace = Trace(began=time.time())
        reader, writer = self.threads
        ahead = len(self.buffers)
        writes: list[Future] = []

        def traced(lane: str, call: Callable, k: int):
            kind = "optimizer" if lane == "update" else "communication"
            with self.trace.span(str(k), lane=lane, kind=kind):
                return call(k, self.buffers[k % ahead])

        def fetch(k: int):
            if target is not None and k >= ahead:
                writes[k - ahead].result()  # the buffer's last block is on the disk
            if source is not None:
                traced("read", source.read, k)

        reads = deque(reader.submit(fetch, k) for k in range(min(ahead, count)))
        try:
            for k in range(count):
                reads.popleft().result()
                traced("update", change, k)
                if target is not None:
                    writes.append(writer.submit(traced, "write", target.write, k))
                if k + ahead < count:
                    reads.append(reader.submit(fetch, k + ahead))
            sums = [work.result() for work in writes]
        finally:
            wait([*reads, *writes])  # also after an error
        size = len(self.buffers[0]) * count
        self.read += size if source else 0
        self.written += size if target else 0
        return sums

    def timeline(self):
        """Draw the last pass: a lane each for reads, updates and writes. Returns a Picture."""
        return self.trace.plot(lanes=("read", "update", "write"))

    def close(self):
        for thread in self.threads:
            thread.shutdown()
