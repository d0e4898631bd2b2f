"""Show the output of ranks in the cell, line by line, each line with its rank."""

import codecs
import shutil
import sys
from collections import Counter

from helpers.runtime.private import private_folder
from helpers.runtime.screen import put, say

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
    go to a file as far as there is room; the last lines name this file. The end of a very long line
    is left out.
    """

    def __init__(self, on_folder):
        self.on_folder = on_folder  # called with the folder of files for long output
        self.streams: dict[tuple[int, str], Stream] = {}
        self.lines = self.characters = 0
        self.kept: Kept | None = None

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
        if self.kept:
            self.kept.finish()
        self.kept = None
        put("")

    def write(self, rank: int, name: str, lines: list[str]):
        shown = []
        for i, line in enumerate(lines):
            if self.lines >= LINES_SHOWN or self.characters >= CHARACTERS_SHOWN:
                self.kept = self.kept or Kept(self.on_folder)
                self.kept.add(rank, lines[i:])
                break
            shown.append(f"[rank {rank}] {line[:LINE_SHOWN]}{'…' if line[LINE_SHOWN:] else ''}\n")
            self.lines += 1
            self.characters += len(shown[-1])
        if shown:
            put("".join(shown), getattr(sys, name))


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
    """Keeps the lines that are too many to show, in a file for all ranks of a call.

    Attributes:
        count: these lines by rank, with or without room.
        left_out: lines without room, by rank. After the first of them no other line is kept, so the
            file has no gaps.
    """

    def __init__(self, on_folder):
        self.count, self.left_out = Counter(), Counter()
        self.problem = ""
        self.file = None
        try:
            folder = private_folder()
            on_folder(folder)
            before = list(folder.glob(PRINTED))
            taken = sum(file.stat().st_size for file in before)
            free = shutil.disk_usage(folder).free
            self.room = min(BYTES_KEPT - taken, int(DISK_SHARE * free))  # bytes
            self.path = folder / PRINTED.replace("*", str(len(before)))
            self.file = self.path.open("wb")
        except OSError as error:
            self.problem = error.strerror

    def add(self, rank: int, lines: list[str]):
        self.count[rank] += len(lines)
        for line in lines if not self.problem else ():
            data = f"[rank {rank}] {line}\n".encode()
            if self.left_out or len(data) > self.room:
                self.left_out[rank] += 1
                continue
            self.room -= len(data)
            try:
                self.file.write(data)
            except OSError as error:
                self.problem = error.strerror
                return

    def finish(self):
        """Print how many lines of each rank were not shown, and where they are."""
        try:
            if self.file:
                self.file.close()
        except OSError as error:
            self.problem = error.strerror
        if self.left_out == self.count:  # the file is empty
            self.problem = self.problem or "there is no room for them"
        if self.problem and self.file:
            self.path.unlink(missing_ok=True)  # half a file helps nobody and takes room
        for rank, count in sorted(self.count.items()):
            if self.problem:
                where = f"could not be kept: {self.problem}"
            else:
                where = f"are in {self.path} until this notebook ends"
                if left_out := self.left_out[rank]:
                    where += f"; the last {left_out:,} of them are left out, to spare the disk"
            say(f"[rank {rank}] … {count:,} more lines {where}")
