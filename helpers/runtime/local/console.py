"""Show the output of ranks in the cell, line by line, each line with its rank."""

import codecs
import shutil
import sys
from pathlib import Path

from helpers.runtime.private import private_folder
from helpers.runtime.terminal import put, say

LINES_SHOWN = 2_000  # per call, over all ranks: a notebook with more lines becomes slow to open
CHARACTERS_SHOWN = 500_000
LINE_SHOWN = 2_000  # characters of one line
LINE_KEPT = 100_000  # characters of one line: a rank may print forever without ending the line
BYTES_KEPT = 500_000_000  # in all files of this notebook
DISK_SHARE = 0.5  # of the free space on the disk, at most
PRINTED = "printed-*.txt"


class Console:
    """Collects bytes by rank and stream, and writes whole lines.

    Bytes that are not UTF-8 become replacement characters. Lines beyond the limit are counted, and
    go to a file as far as there is room; the last line names this file. The end of a very long line
    is left out.
    """

    def __init__(self, on_folder):
        self.on_folder = on_folder  # called with the folder of files for long output
        self.streams: dict[tuple[int, str], Stream] = {}
        self.lines = self.characters = 0
        self.kept: dict[int, Kept] = {}
        self.room: Room | None = None

    def feed(self, rank: int, name: str, data: bytes):
        stream = self.streams.setdefault((rank, name), Stream())
        self.write(rank, name, stream.lines(data))

    def finish(self):
        """Show lines without an end, and print how much was not shown."""
        for (rank, name), stream in self.streams.items():
            self.write(rank, name, stream.rest())
            if stream.left_out:
                say(
                    f"[rank {rank}] … {stream.left_out:,} characters are left out: "
                    f"a line keeps its first {LINE_KEPT:,} characters"
                )
        self.streams.clear()
        for rank, kept in sorted(self.kept.items()):
            say(f"[rank {rank}] … {kept.count:,} more lines {kept.close()}")
        self.kept.clear()
        self.room = None
        sys.stdout.flush()

    def write(self, rank: int, name: str, lines: list[str]):
        shown = []
        for i, line in enumerate(lines):
            if self.lines >= LINES_SHOWN or self.characters >= CHARACTERS_SHOWN:
                self.keep(rank, lines[i:])
                break
            shown.append(f"[rank {rank}] {line[:LINE_SHOWN]}{'…' if line[LINE_SHOWN:] else ''}\n")
            self.lines += 1
            self.characters += len(shown[-1])
        if shown:
            put("".join(shown), getattr(sys, name))

    def keep(self, rank: int, lines: list[str]):
        if rank not in self.kept:
            self.room = self.room or Room()
            self.kept[rank] = Kept(rank, self.on_folder, self.room)
        self.kept[rank].add(lines)


class Stream:
    """One rank's standard output or error: bytes in, whole lines out.

    Attributes:
        left_out: characters beyond the first LINE_KEPT of a line.
    """

    def __init__(self):
        self.decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.partial = ""
        self.left_out = 0

    def lines(self, data: bytes) -> list[str]:
        text = self.decode(data).replace("\r\n", "\n").replace("\r", "\n")
        *ended, begun = text.split("\n")
        lines = []
        for piece in ended:
            self.go_on(piece)
            lines.append(self.partial)
            self.partial = ""
        self.go_on(begun)
        return lines

    def go_on(self, piece: str):
        """Add to the line that has not ended."""
        room = LINE_KEPT - len(self.partial)
        self.partial += piece[:room]
        self.left_out += len(piece[room:])

    def rest(self) -> list[str]:
        self.go_on(self.decode(b"", final=True))
        line, self.partial = self.partial, ""
        return [line] if line else []


class Kept:
    """Keeps the lines of a rank that are too many to show.

    Attributes:
        count: all these lines, with or without room.
        left_out: lines without room.
    """

    def __init__(self, rank: int, on_folder, room: "Room"):
        self.count = self.left_out = 0
        self.problem = ""
        self.file = None
        self.room = room
        try:
            folder = private_folder()
            on_folder(folder)
            room.measure(folder)
            self.path = next_free(folder, rank)
            self.file = self.path.open("wb")
        except OSError as error:
            self.problem = error.strerror

    def add(self, lines: list[str]):
        self.count += len(lines)
        if not self.file or self.problem:
            return
        for i, line in enumerate(lines):
            data = f"{line}\n".encode()
            # After the first missing line, no other line is kept, so the file has no gaps.
            if self.left_out or not self.room.take(len(data)):
                self.left_out += len(lines) - i
                return
            try:
                self.file.write(data)
            except OSError as error:
                self.problem = error.strerror
                return

    def close(self) -> str:
        try:
            if self.file:
                self.file.close()
        except OSError as error:
            self.problem = error.strerror
        if self.left_out == self.count:  # the file is empty
            self.problem = self.problem or "there is no room for them"
        if self.problem:
            if self.file:
                self.path.unlink(missing_ok=True)  # half a file helps nobody and takes room
            return f"could not be kept: {self.problem}"
        where = f"are in {self.path} until this notebook ends"
        if self.left_out:
            where += f"; the last {self.left_out:,} of them are left out, to spare the disk"
        return where


class Room:
    """The bytes that the files of one call, of all ranks together, may still use."""

    def __init__(self):
        self.bytes: int | None = None

    def measure(self, folder: Path):
        """Measure the room when the first file of a call is made."""
        if self.bytes is None:
            taken = sum(file.stat().st_size for file in folder.glob(PRINTED))
            free = shutil.disk_usage(folder).free
            self.bytes = min(BYTES_KEPT - taken, int(DISK_SHARE * free))

    def take(self, size: int) -> bool:
        """Reserve so many bytes; return False if there is no room for them."""
        if size > self.bytes:
            return False
        self.bytes -= size
        return True


def next_free(folder: Path, rank: int) -> Path:
    number = len(list(folder.glob(PRINTED)))
    return folder / f"printed-{number}-rank{rank}.txt"
