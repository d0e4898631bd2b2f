"""A file past the page cache; blocks that are read and written while another is updated."""

import errno
import os
import shutil
import subprocess
import threading
import time

import pytest
import xxhash

from helpers.parallel.offload import blocks
from helpers.parallel.offload.blocks import ADVISED, CACHED, DIRECT, PAGE, BlockFile, Stream
from helpers.state.seal import BrokenCheckpoint

PATIENCE = 10  # seconds; then two works do not overlap


def without_direct(monkeypatch):
    real = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT here")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("way", [DIRECT, ADVISED, CACHED])
def test_every_way_keeps_the_bytes_and_two_ways_keep_the_page_cache_free(
    tmp_path, monkeypatch, way
):
    if way != DIRECT:
        without_direct(monkeypatch)
    if way == CACHED:
        monkeypatch.delattr(os, "posix_fadvise")
    file = BlockFile(tmp_path / "file", 8192, 5)
    if way == DIRECT and file.way != DIRECT:
        pytest.skip("the file system of the tests has no O_DIRECT")
    assert file.way == way
    stream = Stream(8192, 2)
    sums = stream.run(lambda k, b: b.__setitem__(slice(None), bytes([k]) * 8192), 5, target=file)
    assert sums == [xxhash.xxh3_64_intdigest(bytes([k]) * 8192) for k in range(5)]
    found = []
    stream.run(lambda k, b: found.append(b[:]), 5, source=file)
    assert found == [bytes([k]) * 8192 for k in range(5)]
    file.flush()
    if shutil.which("fincore"):
        told = subprocess.run(["fincore", "-nbo", "RES", file.path], capture_output=True, text=True)
        assert (int(told.stdout) == 0) == (way != CACHED)
    assert (stream.nbytes, stream.read, stream.written) == (16384, 5 * 8192, 5 * 8192)
    stream.close()
    file.close()


class Waiting:
    """A file whose works wait for one another, as only works that overlap can."""

    def __init__(self):
        works = [(what, k) for what in ("read", "change", "write") for k in range(6)]
        self.begun = {work: threading.Event() for work in works}
        self.met = []

    def meet(self, what, k):
        self.met.append(self.begun[what, k].wait(PATIENCE))

    def read(self, k, buffer):
        self.begun["read", k].set()
        if k > 1:
            self.meet("write", k - 2)  # while block k is read, block k-2 is written

    def change(self, k, buffer):
        self.begun["change", k].set()
        if k < 5:
            self.meet("read", k + 1)  # while block k changes, block k+1 is read

    def write(self, k, buffer):
        self.begun["write", k].set()
        if k < 5:
            self.meet("change", k + 1)  # while block k is written, block k+1 changes
        return k


@pytest.mark.parametrize("buffers", [2, 3, 5, 9])
def test_reads_updates_and_writes_overlap(buffers):
    file, stream = Waiting(), Stream(4096, buffers)
    assert stream.run(file.change, 6, file, file) == list(range(6))
    assert len(file.met) == 14
    assert all(file.met)
    stream.close()


class Shared:
    """A file that sees which buffers are in use: a buffer has one block at a time."""

    def __init__(self):
        self.owner, self.events = {}, []

    def read(self, k, buffer):
        assert self.owner.get(id(buffer)) is None
        self.owner[id(buffer)] = k
        self.events.append(("read", k))

    def change(self, k, buffer):
        assert self.owner[id(buffer)] == k

    def write(self, k, buffer):
        assert self.owner[id(buffer)] == k
        self.owner[id(buffer)] = None
        self.events.append(("write", k))
        return k


@pytest.mark.parametrize("buffers", [1, 2, 3, 7])
def test_a_buffer_is_read_into_only_when_its_last_block_is_written(buffers):
    file, stream = Shared(), Stream(4096, buffers)
    for _ in range(3):
        assert stream.run(file.change, 5, file, file) == list(range(5))
    assert len(file.owner) == min(buffers, 5)
    held = most = 0
    for what, _ in file.events:
        held += 1 if what == "read" else -1
        most = max(most, held)
    assert most <= buffers
    stream.close()


@pytest.mark.parametrize("what", ["read", "change", "write"])
def test_an_error_ends_the_pass_and_the_stream_works_again(what):
    file, stream = Shared(), Stream(4096, 2)

    def broken(k, buffer):
        if k == 3:
            raise OSError("the disk has gone")
        return getattr(Shared, what)(file, k, buffer)

    setattr(file, what, broken)
    with pytest.raises(OSError, match="has gone"):
        stream.run(file.change, 9, file, file)
    fresh = Shared()
    assert stream.run(fresh.change, 4, fresh, fresh) == list(range(4))
    stream.close()


def test_a_file_of_another_size_is_torn(tmp_path):
    BlockFile(tmp_path / "file", 4096, 3).close()
    assert (tmp_path / "file").stat().st_size == 3 * 4096
    with pytest.raises(BrokenCheckpoint, match=r"has 12,288 bytes, not 16,384: the file is torn"):
        BlockFile(tmp_path / "file", 4096, 4, existing=True)
    file = BlockFile(tmp_path / "file", 4096, 3, existing=True)
    os.truncate(file.path, 4096)
    with pytest.raises(BrokenCheckpoint, match="ends inside block 1"):
        Stream(4096, 1).run(lambda k, b: None, 3, source=file)


def test_a_system_that_moves_few_bytes_at_a_time_is_asked_again(tmp_path, monkeypatch):
    file = BlockFile(tmp_path / "file", 8192, 2)
    real = os.pwritev, os.preadv
    for name, call in zip(("pwritev", "preadv"), real, strict=True):
        monkeypatch.setattr(os, name, lambda h, v, at, call=call: call(h, [v[0][:4096]], at))
    content = os.urandom(8192)
    stream = Stream(8192, 1)
    stream.run(lambda k, b: b.__setitem__(slice(None), content), 2, target=file)
    found = []
    stream.run(lambda k, b: found.append(b[:]), 2, source=file)
    assert found == [content] * 2
    assert blocks.PAGE == 4096


def test_after_an_error_nothing_is_written_any_more():
    written = []

    class Slow:
        def write(self, k, buffer):
            time.sleep(0.2)
            written.append(k)

    def change(k, buffer):
        if k == 2:
            raise ValueError("the third block")

    stream = Stream(PAGE, 3)
    with pytest.raises(ValueError, match="the third block"):
        stream.run(change, 3, target=Slow())
    assert written == [0, 1]
    stream.close()
