"""What ranks print, in the cell, line by line, each with its rank."""

import codecs
import sys
from pathlib import Path

from helpers.runtime.private import private_folder
from helpers.runtime.terminal import put, say

LINES_SHOWN = 2_000  # per call, over all ranks: a notebook with more becomes slow to open
CHARACTERS_SHOWN = 500_000
LINE_SHOWN = 2_000  # characters of one line


class Console:
    """Collects bytes by rank and stream, and writes whole lines.

    Bytes that are no UTF-8 are shown as replacement characters. What is too much to show is
    counted, and kept in a file that the last line names.
    """

    def __init__(self, on_folder):
        self.on_folder = on_folder  # told when a folder was made for what is not shown
        self.streams: dict[tuple[int, str], Stream] = {}
        self.lines = self.characters = 0
        self.kept: dict[int, Kept] = {}

    def feed(self, rank: int, name: str, data: bytes):
        stream = self.streams.setdefault((rank, name), Stream())
        self.write(rank, name, stream.lines(data))

    def finish(self):
        """Show what stands without a line end, and say what was not shown."""
        for (rank, name), stream in self.streams.items():
            self.write(rank, name, stream.rest())
        self.streams.clear()
        for rank, kept in sorted(self.kept.items()):
            say(f"[rank {rank}] … {kept.count:,} more lines {kept.close()}")
        self.kept.clear()
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
            self.kept[rank] = Kept(rank, self.on_folder)
        self.kept[rank].add(lines)


class Stream:
    """One rank's standard output or error: bytes in, whole lines out."""

    def __init__(self):
        self.decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.partial = ""

    def lines(self, data: bytes) -> list[str]:
        text = self.partial + self.decode(data).replace("\r\n", "\n").replace("\r", "\n")
        *lines, self.partial = text.split("\n")
        return lines

    def rest(self) -> list[str]:
        line, self.partial = self.partial + self.decode(b"", final=True), ""
        return [line] if line else []


class Kept:
    """The lines of a rank that are too many to show."""

    def __init__(self, rank: int, on_folder):
        self.count = 0
        self.problem = ""
        self.file = None
        try:
            folder = private_folder()
            on_folder(folder)
            self.path = next_free(folder, rank)
            self.file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            self.problem = error.strerror

    def add(self, lines: list[str]):
        self.count += len(lines)
        if self.file and not self.problem:
            try:
                self.file.writelines(line + "\n" for line in lines)
            except OSError as error:
                self.problem = error.strerror

    def close(self) -> str:
        try:
            if self.file:
                self.file.close()
        except OSError as error:
            self.problem = error.strerror
        if self.problem:
            if self.file:
                self.path.unlink(missing_ok=True)  # a part is of no use, and there is no room
            return f"could not be kept: {self.problem}"
        return f"are in {self.path} until this notebook ends"


def next_free(folder: Path, rank: int) -> Path:
    number = len(list(folder.iterdir()))
    return folder / f"printed-{number}-rank{rank}.txt"
