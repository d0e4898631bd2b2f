"""A folder is a whole checkpoint or none, and every kind of damage is refused by name."""

import hashlib
import json
import os
import shutil

import pytest
import torch

from helpers.state.seal import (
    SEAL,
    BrokenCheckpoint,
    begin,
    checksum,
    finish,
    newest,
    prune,
    seal,
    verify,
)


def write(path, text=b"0123456789"):
    folder = begin(path)
    (folder / "a.bin").write_bytes(text)
    (folder / "b.bin").write_bytes(text * 2)
    finish(path)
    return path


def test_whole(tmp_path):
    path = write(tmp_path / "step_1")
    verify(path)
    verify(str(path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step_1"]
    assert sorted(file.name for file in path.iterdir()) == ["a.bin", "b.bin", SEAL]


def test_the_disk_has_everything_before_the_name(tmp_path, monkeypatch):
    """Without it, a machine that loses its power has a whole folder of empty files."""
    on_disk, real = [], os.fsync

    def noted(handle):
        on_disk.append(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    open_before = len(os.listdir("/proc/self/fd"))
    path = write(tmp_path / "step_1")
    names = [path / "a.bin", path / "b.bin", path / SEAL, path, tmp_path]  # the rename, too
    assert on_disk == [name.stat().st_ino for name in names]
    assert len(os.listdir("/proc/self/fd")) == open_before


def cut_off(path):
    (path / "b.bin").write_bytes(b"0123")


def flip_a_bit(path):
    data = bytearray((path / "b.bin").read_bytes())
    data[7] ^= 1
    (path / "b.bin").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_off, r"b\.bin has 4 bytes, but 20 were saved"),
        (flip_a_bit, r"b\.bin does not match its checksum"),
        (lambda path: (path / "b.bin").unlink(), r"b\.bin is missing"),
        (lambda path: (path / SEAL).unlink(), f"{SEAL} is missing"),
        (lambda path: (path / SEAL).write_text("{"), f"{SEAL} is not readable"),
        (lambda path: (path / SEAL).write_text("[]"), f"{SEAL} is not readable"),
        (shutil.rmtree, "no such folder"),
        (lambda path: shutil.rmtree(path) or path.write_text("a file"), "no such folder"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    path = write(tmp_path / "step_1")
    damage(path)
    with pytest.raises(BrokenCheckpoint, match=message):
        verify(path)


def test_ranks_share_the_reading(tmp_path):
    """Each rank reads its files; together they read all."""
    path = write(tmp_path / "step_1")
    flip_a_bit(path)
    verify(path, slice(0, None, 2))
    with pytest.raises(BrokenCheckpoint, match=r"b\.bin"):
        verify(path, slice(1, None, 2))


def test_an_interrupted_writing_is_no_checkpoint(tmp_path):
    write(tmp_path / "step_1")
    folder = begin(tmp_path / "step_2")
    (folder / "a.bin").write_bytes(b"01")  # and here the process is killed
    (tmp_path / "step_3").write_text("a file")
    with pytest.raises(BrokenCheckpoint, match=r"step_2\.writing was never finished"):
        verify(tmp_path / "step_2")
    assert newest(tmp_path) == tmp_path / "step_1"
    seal(folder)  # or it is killed here, before the new name
    assert newest(tmp_path) == tmp_path / "step_1"
    assert list(begin(tmp_path / "step_2").iterdir()) == []  # the next try starts anew
    assert begin(tmp_path / "deep" / "step_2").is_dir()  # the folder above is made, too


def test_the_newest_whole_one(tmp_path):
    assert newest(tmp_path / "nothing") is newest(__file__) is None
    for step in (1, 2, 10):
        write(tmp_path / f"step_{step}")
    prune(tmp_path, 2)
    assert newest(tmp_path).name == "step_10"
    flip_a_bit(tmp_path / "step_10")
    assert newest(tmp_path).name == "step_2"


@pytest.mark.parametrize(
    ("damaged", "keep", "left"),
    [
        ((), 2, [3, 4]),
        ((), 1, [4]),
        ((4,), 2, [2, 3, 4]),  # a damaged one does not count
        ((2, 3), 2, [1, 2, 3, 4]),
        ((1, 3, 4), 2, [0, 1, 2, 3, 4]),  # fewer whole ones than it keeps: it deletes nothing
        ((1,), 3, [2, 3, 4]),
    ],
)
def test_a_clean_up_keeps_so_many_whole_ones(tmp_path, damaged, keep, left):
    for step in range(1, 5):
        write(tmp_path / f"step_{step}")
        if step in damaged:
            flip_a_bit(tmp_path / f"step_{step}")
    (tmp_path / "step_0.writing").mkdir()
    (tmp_path / "notes").mkdir()  # no checkpoint
    prune(tmp_path, keep)
    steps = {int(path.name[5]) for path in tmp_path.glob("step_?*")}
    assert (sorted(steps), (tmp_path / "notes").is_dir()) == (left, True)
    with pytest.raises(ValueError, match="prune keeps one checkpoint or more, not 0"):
        prune(tmp_path, 0)


def test_a_checkpoint_is_never_replaced(tmp_path):
    write(tmp_path / "step_1")
    with pytest.raises(FileExistsError, match="a folder of its own"):
        begin(tmp_path / "step_1")
    verify(tmp_path / "step_1")


def test_any_folder_can_be_sealed(tmp_path):
    (tmp_path / "weights").write_bytes(b"1")
    seal(tmp_path)
    verify(tmp_path)
    (tmp_path / "notes").write_bytes(b"later")  # files that were not sealed do not matter
    verify(tmp_path)
    (tmp_path / "folder").mkdir()
    seal(tmp_path)  # again: the seal itself is not sealed
    assert list(json.loads((tmp_path / SEAL).read_text())) == ["notes", "weights"]
    verify(tmp_path)
    seal(tmp_path, {"weights": [1, hashlib.sha256(b"1").hexdigest()]})  # known: not read again
    (tmp_path / "notes").unlink()
    verify(tmp_path)


def test_checksums_that_are_known_are_sealed_as_they_are(tmp_path):
    """They are of the bytes that were meant: what the disk has lost since then is found."""
    (tmp_path / "a.bin").write_bytes(b"torn")
    meant = hashlib.sha256(b"what was meant").hexdigest()
    seal(tmp_path, {"a.bin": [14, meant]})
    assert json.loads((tmp_path / SEAL).read_text()) == {"a.bin": [14, meant]}
    with pytest.raises(BrokenCheckpoint, match="has 4 bytes, but 14 were saved"):
        verify(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16])
def test_a_checksum_depends_on_every_bit(dtype):
    value = torch.ones(2, dtype=dtype)
    found, bytes_ = {checksum(value)}, value.view(torch.uint8)
    for bit in range(8 * len(bytes_)):
        bytes_[bit // 8] ^= 1 << bit % 8
        found.add(checksum(value))
    assert len(found) == 1 + 8 * len(bytes_)
