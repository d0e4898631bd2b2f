"""Two versions of a rank's state on disk, written in turn, so that one of them is always whole."""

import json
import os
import zlib
from pathlib import Path

from helpers.parallel.offload.blocks import BlockFile, Stream
from helpers.state.seal import WRITING, BrokenCheckpoint, to_disk


class Versions:
    """Two files of blocks of one rank. A new version replaces the older of the two.

    A version counts only with its **record**: a small file that is written, and renamed, after the
    disk has all blocks. It is removed before the version's blocks are overwritten. So a rank may be
    killed at any time, and has a whole version left.

    Args:
        folder: of all ranks; made if it is missing.
        rank: of these files: rank0-a.state, rank0-a.json, …
        block, count: bytes of a block, and blocks of a version.
        facts: what must be the same for a version to be read again: names, sizes, dtype, ….

    Attributes:
        current: the record of the newest version, with "updates"; None before the first.

    Raises:
        OSError: as for BlockFile, and if the folder cannot be made.
        FileExistsError: from the first `target`, if an earlier run's versions are there.
    """

    def __init__(self, folder: str | os.PathLike, rank: int, block: int, count: int, facts: dict):
        self.folder, self.block, self.count = Path(folder), block, count
        self.facts = {**facts, "block": block, "count": count}
        self.stems = [self.folder / f"rank{rank}-{letter}" for letter in "ab"]
        self.files: list[BlockFile] = []
        self.place, self.current = 1, None  # of the newest version
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f"rank{rank}{WRITING}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OSError(
                error.errno,
                f"{folder} cannot have the optimizer's state ({error.strerror}): choose a folder "
                "that this process may write to",
            ) from error
        self.earlier = any(self.record(stem).exists() for stem in self.stems)

    @staticmethod
    def record(stem: Path) -> Path:
        return stem.with_suffix(".json")

    @staticmethod
    def data(stem: Path) -> Path:
        return stem.with_suffix(".state")

    def open(self, existing: int | None = None):
        """Open both files. They are made, but for the one at the place `existing`."""
        if self.files:
            return
        made: list[BlockFile] = []
        try:
            for place, stem in enumerate(self.stems):
                again = place == existing
                made.append(BlockFile(self.data(stem), self.block, self.count, existing=again))
        except OSError:
            for file in made:
                file.close()
                if existing is None:
                    file.path.unlink()
            raise
        self.files = made

    @property
    def source(self) -> BlockFile:
        """The newest version's blocks."""
        return self.files[self.place]

    def target(self) -> BlockFile:
        """The file for the next version. What it had is no version any more."""
        if self.earlier:
            raise FileExistsError(
                f"{self.folder} has the state of an earlier run: continue from it with recover(), "
                "or name a new folder"
            )
        self.open()
        self.record(self.stems[1 - self.place]).unlink(missing_ok=True)
        return self.files[1 - self.place]

    def commit(self, note: dict, sums: list[int]):
        """Make what was written to `target` the newest version."""
        self.files[1 - self.place].flush()
        self.place = 1 - self.place
        self.current = {**self.facts, **note, "sums": sums}
        path = self.record(self.stems[self.place])
        writing = path.with_suffix(WRITING)
        writing.write_text(json.dumps(self.current))
        to_disk(writing)
        os.replace(writing, path)
        to_disk(self.folder)

    def whole(self, stream: Stream) -> tuple[dict[int, int], list[str]]:
        """Read all versions, and check them.

        Returns:
            updates -> the place of each whole version; and what is wrong with the others.
        """
        found, wrong = {}, []
        for place, stem in enumerate(self.stems):
            try:
                found[self.checked(stem, stream)["updates"]] = place
            except (OSError, ValueError, KeyError) as error:
                wrong.append(str(error))
        return found, wrong

    def checked(self, stem: Path, stream: Stream) -> dict:
        """The record of a version whose blocks have their checksums."""
        if not self.record(stem).exists():
            raise BrokenCheckpoint(
                f"{self.record(stem).name} is missing: that version is not whole"
            )
        record = json.loads(self.record(stem).read_text())
        for name, value in self.facts.items():
            if record[name] != value:
                raise BrokenCheckpoint(f"{stem.name} has other {name} than this training")
        file = BlockFile(self.data(stem), self.block, self.count, existing=True)
        sums = [0] * self.count
        try:
            stream.run(lambda k, b: sums.__setitem__(k, zlib.crc32(b)), self.count, source=file)
        finally:
            file.close()
        for k, (here, then) in enumerate(zip(sums, record["sums"], strict=True)):
            if here != then:
                raise BrokenCheckpoint(f"{file.path} is torn: block {k} is not as it was written")
        return record

    def use(self, place: int):
        """Continue from the version at this place, which is whole."""
        self.earlier, self.place = False, place
        self.current = json.loads(self.record(self.stems[place]).read_text())
        self.open(existing=place)

    def close(self):
        for file in self.files:
            file.close()
        self.files = []
