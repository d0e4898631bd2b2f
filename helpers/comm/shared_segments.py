"""Memory without a name that the ranks of one machine have mapped, and what they tell each other.

A segment is a file in memory without a name (memfd): its pages live as long as somebody holds it
open or mapped. When the last such process ends, however it ends, they are gone. The other ranks
open it as /proc/<process>/fd/<number> of the rank that made it, and then it is closed: only the
mappings remain. Nothing appears in /dev/shm, whose size (64 MB in many containers) is no limit
either.
"""

import mmap
import os
import struct
import uuid
import weakref

import torch
import torch.distributed as dist

from helpers.comm.messages import Peers
from helpers.comm.shared_barrier import Barrier

SLOT = 256  # bytes in which a rank says what it calls
WORDS = struct.Struct("<qqH")  # where its buffer lies: segment, offset; length of the text


class Segments:
    """Segments of the ranks of a group, each mapped by every rank. All ranks make it, and call its
    methods, together.

    Args:
        timeout: seconds that a rank waits for another that lives, and does not come.

    Attributes:
        rank, size: this rank's place in the group, and how many there are.
        segments: [number][rank] -> (bytes,) uint8.

    Raises:
        OSError: this is no Linux; no memory left; the ranks are of different users.
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
        self.bounds: list[tuple[int, int]] = []  # [number]: this rank's first byte, and behind it
        self.turn = 0
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
            dist.barrier(self.group)  # all have done so: nobody needs the descriptor any more
        finally:
            os.close(fd)

    def introduced(self, fd: int) -> list[list[int]]:
        """Every rank's machine, process and descriptor, as plain numbers: nothing to unpickle."""
        own = torch.tensor([*where(), os.getpid(), fd], dtype=torch.int64)
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own, group=self.group)
        return [numbers.tolist() for numbers in everyone]

    def agree(self, text: str, place: tuple[int, int] = (-1, 0)) -> tuple[tuple[int, int], ...]:
        """A barrier at which the ranks say what they are about to do.

        Args:
            text: what; must be the same on all ranks.
            place: two whole numbers that may differ by rank.

        Returns:
            Every rank's `place`.

        Raises:
            ValueError: the texts differ; says who is about to do what. And those of `Barrier.wait`.
        """
        said = text.encode()[: SLOT - WORDS.size]
        self.turn ^= 1  # two rows of slots: a fast rank writes its next while others still read
        first = self.turn * self.size * SLOT
        own, slots = first + self.rank * SLOT, self.slots
        slots[own : own + WORDS.size + len(said)] = WORDS.pack(*place, len(said)) + said
        self.barrier.wait(text)
        places = []
        for at in range(first, first + self.size * SLOT, SLOT):
            segment, offset, length = WORDS.unpack_from(slots, at)
            other = bytes(slots[at + WORDS.size : at + WORDS.size + length])
            if other != said:
                names, rank = self.barrier.names, (at - first) // SLOT
                raise ValueError(
                    f"the ranks differ: rank {names[self.rank]} calls {text}, "
                    f"rank {names[rank]} calls {other.decode(errors='replace')}"
                )
            places.append((segment, offset))
        return tuple(places)

    def allocate(self, nbytes: int, what: str) -> list[torch.Tensor]:
        """A new segment of each rank, zeros at first: [rank] -> (nbytes,) uint8.

        Each rank makes its own, so that its pages lie near its own core.
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
        """`map_shared`, of a rank that may have ended meanwhile."""
        try:
            return map_shared(self.pids[rank], fd, nbytes)
        except RuntimeError:
            if rank != self.rank and self.barrier.has_ended(rank):
                raise self.barrier.lost([rank], "the making of shared memory") from None
            raise

    def locate(self, row: torch.Tensor) -> tuple[int, int] | None:
        """The segment of this rank in which a tensor's memory lies, and at which byte."""
        at, end = row.data_ptr(), row.data_ptr() + row.nbytes
        for number, (first, behind) in enumerate(self.bounds):
            if first <= at and end <= behind:
                return number, at - first
        return None

    def close(self):
        """Forget the segments. Their memory is given back with the last tensor in it."""
        self.barrier.close()
        self.segments.clear()
        self.bounds.clear()


def create(nbytes: int) -> int:
    """The descriptor of a segment whose pages are there: no later call has to wait for them."""
    fd = os.memfd_create("helpers-shared")
    try:
        os.posix_fallocate(fd, 0, max(mmap.PAGESIZE, nbytes))
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_shared(pid: int, fd: int, nbytes: int) -> torch.Tensor:
    """(nbytes,) uint8: the memory behind a descriptor of that process, mapped until it is freed."""
    path = f"/proc/{pid}/fd/{fd}"
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


def where() -> tuple[int, ...]:
    """The same on two ranks if they run on one machine, and see each other's processes.

    Returns:
        Four numbers of at most 64 bits: when and where the machine was started, in two halves; the
        process's namespace, as the device and the number of its file.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = uuid.UUID(file.read().strip()).bytes
    namespace = os.stat("/proc/self/ns/pid")
    return *struct.unpack("<qq", boot), namespace.st_dev, namespace.st_ino
