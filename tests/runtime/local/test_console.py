"""What ranks print, line by line."""

import pytest

from helpers.runtime.local import console
from helpers.runtime.local.console import Console


@pytest.fixture
def folders(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(console, "private_folder", lambda: tmp_path)
    return told


def test_whole_lines_by_rank_and_stream(capsys, folders):
    c = Console(folders.append)
    c.feed(0, "stdout", b"one\ntw")
    c.feed(1, "stdout", b"other\n")
    c.feed(0, "stderr", b"bad\n")
    c.feed(0, "stdout", b"o\n")
    c.finish()
    out, err = capsys.readouterr()
    assert out == "[rank 0] one\n[rank 1] other\n[rank 0] two\n"
    assert err == "[rank 0] bad\n"


def test_a_last_line_without_an_end(capsys, folders):
    c = Console(folders.append)
    c.feed(2, "stdout", b"no end")
    assert capsys.readouterr().out == ""
    c.finish()
    assert capsys.readouterr().out == "[rank 2] no end\n"


def test_characters_cut_in_two_and_bytes_that_are_none(capsys, folders):
    c = Console(folders.append)
    word = "é→\n".encode()
    for i in range(len(word)):
        c.feed(0, "stdout", word[i : i + 1])
    c.feed(0, "stdout", b"\xff\xfe!\n")
    c.finish()
    assert capsys.readouterr().out == "[rank 0] é→\n[rank 0] \ufffd\ufffd!\n"


def test_a_long_line_is_cut(capsys, folders):
    c = Console(folders.append)
    c.feed(0, "stdout", b"x" * 1_000_000 + b"\n")
    assert len(capsys.readouterr().out) < 2_100


def test_too_many_lines_are_counted_and_kept(capsys, folders, tmp_path):
    c = Console(folders.append)
    for i in range(100):
        c.feed(0, "stdout", b"".join(b"line %d\n" % (100 * i + j) for j in range(100)))
    c.feed(1, "stdout", b"me too\n")
    c.finish()
    *shown, last0, last1 = capsys.readouterr().out.splitlines()
    assert len(shown) == console.LINES_SHOWN
    assert last0.startswith("[rank 0] … 8,000 more lines are in")
    assert last1.startswith("[rank 1] … 1 more lines are in")
    assert folders == [tmp_path, tmp_path]
    kept = next(tmp_path.glob("*rank0*")).read_text().splitlines()
    assert kept == [f"line {i}" for i in range(2_000, 10_000)]


def test_no_room_to_keep_them(capsys, folders, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(console, "private_folder", full)
    c = Console(folders.append)
    c.feed(0, "stdout", b"x\n" * 3_000)
    c.finish()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "[rank 0] … 1,000 more lines could not be kept: No space left on device"
