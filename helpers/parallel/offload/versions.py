"""Two versions of a rank's state on disk, written in turn, so that one of them is always whole."""

import json
import os
from pathlib import Path

from helpers.parallel.offload.blocks import BlockFile, Stream, checksum
from helpers.state.seal import WRITING, BrokenCheckpoint, to_disk


class Versions:
    """Two files of blocks of one rank. A new version replaces the older of the two.

    A version counts only with its **record**: a small file that is written, and renamed, after the
    disk has all blocks. It is removed before the version's blocks are overwritten. So a rank may be
    killed at any time, and has a whole version left.

    Args:
        folder: of all ranks; made with the files.
        rank: of these files: rank0-a.state, rank0-a.json, …
        block, count: bytes of a block, and blocks of a version.
        facts: what must be the same for a version to be read again: names, sizes, dtype, ….

    Attributes:
        current: the record of the newest version, with "updates"; None before the first.

    Raises:
        OSError: from the first `target`, as for BlockFile.
        FileExistsError: likewise, if an earlier run's versions are there.
    """

    def __init__(self, folder: str | os.PathLike, rank: int, block: int, count: int, facts: dict):
        self.folder, self.block, self.count = Path(folder), block, count
        self.facts = {**facts, "block": block, "count": count}
        self.data = [self.folder / f"rank{rank}-{letter}.state" for letter in "ab"]
        self.records = [path.with_suffix(".json") for path in self.data]
        self.files: list[BlockFile] = []
        self.newest, self.current = 1, None
        self.earlier = any(path.exists() for path in self.records)

    def open(self, existing: int | None = None):
        """Open both files. They are made, but for the one at the place `existing`."""
        try:
            for place, path in enumerate(self.data):
                again = place == existing
                self.files.append(BlockFile(path, self.block, self.count, existing=again))
        except OSError:
            made = self.data[: len(self.files)] if existing is None else []
            self.close()
            for path in made:
                path.unlink()
            raise

    @property
    def source(self) -> BlockFile:
        """The newest version's blocks."""
        return self.files[self.newest]

    def target(self) -> BlockFile:
        """The file for the next version. What it had is no version any more."""
        if self.earlier:
            raise FileExistsError(
                f"{self.folder} has the state of an earlier run: continue from it with recover(), "
                "or name a new folder"
            )
        if not self.files:
            self.open()
        self.forget()
        return self.files[1 - self.newest]

    def commit(self, note: dict, sums: list[int]):
        """Make what was written to `target` the newest version."""
        place = 1 - self.newest
        self.files[place].flush()
        record = {**self.facts, **note, "sums": sums}
        writing = self.records[place].with_suffix(WRITING)
        writing.write_text(json.dumps(record))
        to_disk(writing)
        os.replace(writing, self.records[place])
        to_disk(self.folder)
        self.newest, self.current = place, record

    def forget(self):
        """Give up the version before the newest."""
        self.records[1 - self.newest].unlink(missing_ok=True)

    def whole(self, stream: Stream) -> tuple[dict[int, int], list[str]]:
        """Read all versions, and check them.

        Returns:
            updates -> the place of each whole version; and what is wrong with the others.
        """
        found, wrong = {}, []
        for place in range(2):
            try:
                found[self.checked(place, stream)["updates"]] = place
            except (OSError, ValueError, KeyError) as error:
                wrong.append(str(error))
        return found, wrong

    def checked(self, place: int, stream: Stream) -> dict:
        """The record of a version whose blocks have their checksums."""
        path = self.records[place]
        if not path.exists():
            raise BrokenCheckpoint(f"{path.name} is missing: that version is not whole")
        record = json.loads(path.read_text())
        for name, value in self.facts.items():
            if record[name] != value:
                raise BrokenCheckpoint(f"{path.name} has other {name} than this training")
        file = BlockFile(self.data[place], self.block, self.count, existing=True)
        sums = [0] * self.count
        try:
            stream.run(lambda k, b: sums.__setitem__(k, checksum(b)), self.count, source=file)
        finally:
            file.close()
        for k, (here, then) in enumerate(zip(sums, record["sums"], strict=True)):
            if here != then:
                raise BrokenCheckpoint(f"{file.path} is torn: block {k} is not as it was written")
        return record

    def use(self, place: int):
        """Continue from the version at this place, which is whole."""
        self.earlier, self.newest = False, place
        self.current = json.loads(self.records[place].read_text())
        self.open(existing=place)

    def close(self):
        for file in self.files:
            file.close()
        self.files = []
