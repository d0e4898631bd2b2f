"""Memory without a name that the ranks of one machine map, and a barrier at which they agree.

A segment is a file in memory without a name (memfd). Its pages live as long as some process has it
open or mapped, and vanish with the last such process, however that process ends. The other ranks
open it as /proc/<process>/fd/<number> of the rank that made it. Then the descriptor is closed, and
only the mappings remain. Nothing appears in /dev/shm, whose size (64 MB in many containers) is no
limit either.
"""

import mmap
import os
import struct
import uuid
import weakref
from functools import lru_cache

import torch
import torch.distributed as dist

from helpers.comm.messages import Peers
from helpers.comm.shared_memory.barrier import Barrier

SLOT = 256  # bytes for the name of a rank's call
WORDS = struct.Struct("<qqH")  # the place of its buffer (segment, offset); length of the text
KEPT = 128  # agreements to keep for later calls


class Segments:
    """Segments of the ranks of a group, each mapped by every rank.

    All ranks make it, and call its methods, together.

    Args:
        timeout: seconds that a rank waits for another rank that lives, but does not arrive.

    Attributes:
        rank, size: this rank's place in the group, and the number of its ranks.
        segments: [number][rank] -> (bytes,) uint8.

    Raises:
        OSError: this is not Linux; no memory left; the ranks are of different users.
        ValueError: a rank runs on another machine, or in another container.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float):
        if not hasattr(os, "memfd_create"):
            raise OSError(
                "memory shared between ranks needs Linux; helpers.comm.collectives do not"
            )
        peers = Peers(group)
        self.group, self.rank, self.size = peers.group, peers.rank, peers.size
        self.segments: list[list[torch.Tensor]] = []
        self.bounds: list[tuple[int, int]] = []  # [number]: this rank's first byte, and its end
        self.turn = 0
        self.understood: dict[bytes, tuple[tuple[int, int], ...]] = {}  # what all said: places
        names = dist.get_process_group_ranks(self.group)
        slots = 2 * self.size * SLOT
        nbytes = slots + Barrier.nbytes(self.size)
        fd = create(nbytes if self.rank == 0 else 0)
        try:
            everyone = self.introduced(fd)
            for name, (*place, _, _) in zip(names, everyone, strict=True):
                if place != everyone[0][:-2]:
                    raise ValueError(f"ranks {names[0]} and {name} are not on one machine")
            self.pids = [pid for *_, pid, _ in everyone]
            control = map_shared(self.pids[0], everyone[0][-1], nbytes)
            self.slots = control[:slots].numpy().data
            self.barrier = Barrier(control[slots:], self.rank, self.size, self.pids, names, timeout)
            weakref.finalize(self, self.barrier.close)
            self.barrier.init()
            dist.barrier(self.group)  # all have mapped it: nobody needs the descriptor any more
        finally:
            os.close(fd)

    def introduced(self, fd: int) -> list[list[int]]:
        """Return every rank's machine, process and descriptor, as plain numbers without pickles."""
        own = torch.tensor([*where(), os.getpid(), fd], dtype=torch.int64)
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own, group=self.group)
        return [numbers.tolist() for numbers in everyone]

    def agree(self, text: str, place: tuple[int, int] = (-1, 0)) -> tuple[tuple[int, int], ...]:
        """Wait at a barrier at which the ranks compare their next calls.

        Args:
            text: the next call; must be the same on all ranks.
            place: two whole numbers that may differ by rank.

        Returns:
            Every rank's `place`.

        Raises:
            ValueError: the texts differ; names two ranks and their calls.
            All errors of `Barrier.wait`.
        """
        self.turn ^= 1  # two rows of slots: a fast rank writes the next while others still read
        first = self.turn * self.size * SLOT
        own = first + self.rank * SLOT
        self.slots[own : own + SLOT] = slot(text, place)
        self.barrier.wait(text)
        everyone = bytes(self.slots[first : first + self.size * SLOT])
        places = self.understood.get(everyone)  # the loop of a training says the same again
        if places is None:
            if len(self.understood) >= KEPT:
                self.understood.clear()
            places = self.understood[everyone] = self.compared(everyone, text)
        return places

    def compared(self, everyone: bytes, text: str) -> tuple[tuple[int, int], ...]:
        """Return the places in the ranks' slots, if all texts are this rank's."""
        places = []
        own = slot(text, (0, 0))[WORDS.size - 2 :]  # without the place
        for rank in range(self.size):
            other = everyone[rank * SLOT : (rank + 1) * SLOT]
            segment, offset, length = WORDS.unpack_from(other)
            if other[WORDS.size - 2 :] != own:
                names, said = self.barrier.names, other[WORDS.size : WORDS.size + length]
                raise ValueError(
                    f"the ranks differ: rank {names[self.rank]} calls {text}, "
                    f"rank {names[rank]} calls {said.decode(errors='replace')}"
                )
            places.append((segment, offset))
        return tuple(places)

    def allocate(self, nbytes: int, what: str) -> list[torch.Tensor]:
        """Make a new segment on each rank, zeros at first: [rank] -> (nbytes,) uint8.

        Each rank makes its own segment, so that its pages are near its own core.
        """
        fd = create(nbytes)
        try:
            places = self.agree(what, (fd, 0))
            try:
                parts = [self.map_of(rank, fd, nbytes) for rank, (fd, _) in enumerate(places)]
            except BaseException:
                self.barrier.give_up()
                raise
            self.barrier.wait(what)  # all have mapped them: the descriptor can be closed
        finally:
            os.close(fd)
        first = parts[self.rank].data_ptr()
        self.bounds.append((first, first + nbytes))
        self.segments.append(parts)
        return parts

    def map_of(self, rank: int, fd: int, nbytes: int) -> torch.Tensor:
        """Call `map_shared` for a rank that may have ended in the meantime."""
        try:
            return map_shared(self.pids[rank], fd, nbytes)
        except RuntimeError:
            if self.barrier.has_ended(rank):  # never this rank itself
                raise self.barrier.lost([rank], "the making of shared memory") from None
            raise

    def locate(self, row: torch.Tensor) -> tuple[int, int] | None:
        """Return this rank's segment that contains a tensor's memory, and the offset in bytes."""
        at, end = row.data_ptr(), row.data_ptr() + row.nbytes
        for number, (first, behind) in enumerate(self.bounds):
            if first <= at and end <= behind:
                return number, at - first
        return None

    def close(self):
        """Forget the segments. Their memory is freed with the last tensor in it."""
        self.barrier.close()
        self.segments.clear()
        self.bounds.clear()


@lru_cache(KEPT)
def slot(text: str, place: tuple[int, int]) -> bytes:
    """Return what a rank says of its next call: (SLOT,) bytes."""
    said = text.encode()[: SLOT - WORDS.size]
    return (WORDS.pack(*place, len(said)) + said).ljust(SLOT, b"\0")


def create(nbytes: int) -> int:
    """Return the descriptor of a new segment; its pages exist, so no later call waits for them."""
    fd = os.memfd_create("helpers-shared")
    try:
        os.posix_fallocate(fd, 0, max(mmap.PAGESIZE, nbytes))
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_shared(pid: int, fd: int, nbytes: int) -> torch.Tensor:
    """Map the memory behind a process's descriptor until it is freed: (nbytes,) uint8."""
    path = f"/proc/{pid}/fd/{fd}"
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


def where() -> tuple[int, ...]:
    """Identify this machine and process namespace: equal on ranks that see each other's processes.

    Returns:
        Four numbers of at most 64 bits: the start of the machine, in two halves; the process's
        namespace, as the device and the number of its file.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = uuid.UUID(file.read().strip()).bytes
    namespace = os.stat("/proc/self/ns/pid")
    return *struct.unpack("<qq", boot), namespace.st_dev, namespace.st_ino
