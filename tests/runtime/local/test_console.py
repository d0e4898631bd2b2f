"""What ranks print, line by line."""

import tracemalloc
from types import SimpleNamespace

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
    c.feed(1, "stdout", b"half a letter: \xc3")
    c.finish()
    assert capsys.readouterr().out == "[rank 1] half a letter: \ufffd\n"


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
    [kept_file] = tmp_path.iterdir()
    *shown, last0, last1 = capsys.readouterr().out.splitlines()
    assert len(shown) == console.LINES_SHOWN
    assert last0 == f"[rank 0] … 8,000 more lines are in {kept_file} until this notebook ends"
    assert last1 == f"[rank 1] … 1 more lines are in {kept_file} until this notebook ends"
    assert folders == [tmp_path]
    own = [f"[rank 0] line {i}" for i in range(2_000, 10_000)]
    assert kept_file.read_text().splitlines() == [*own, "[rank 1] me too"]


def test_too_many_characters_are_kept_too(capsys, folders, tmp_path, monkeypatch):
    """Over all ranks, as they are shown."""
    monkeypatch.setattr(console, "CHARACTERS_SHOWN", 60)
    c = Console(folders.append)
    for rank in (1, 0):  # they are named in order
        c.feed(rank, "stdout", (b"x" * 20 + b"\n") * 3)  # 30 characters with the rank
    c.finish()
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["[rank 1] " + "x" * 20] * 2
    assert [line.split(" more")[0] for line in shown[2:]] == ["[rank 0] … 3", "[rank 1] … 1"]
    c.finish()
    assert capsys.readouterr().out == ""  # each is told once


def test_no_room_to_keep_them(capsys, folders, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(console, "private_folder", full)
    c = Console(folders.append)
    c.feed(0, "stdout", b"x\n" * 3_000)
    c.finish()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "[rank 0] … 1,000 more lines could not be kept: No space left on device"


def test_a_flood_without_a_line_end_takes_little_memory(capsys, folders):
    c = Console(folders.append)
    tracemalloc.start()
    for _ in range(300):
        c.feed(3, "stdout", b"x" * 65_536)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3_000_000  # of 20 million
    c.feed(3, "stdout", b"\nafter it\n")
    c.finish()
    line, after, last = capsys.readouterr().out.splitlines()
    assert line == f"[rank 3] {'x' * console.LINE_SHOWN}…"
    assert after == "[rank 3] after it"
    left_out = 300 * 65_536 - console.LINE_KEPT
    assert last == (
        f"[rank 3] … {left_out:,} characters are left out: "
        "a line keeps its first 100,000 characters"
    )


def test_a_flood_that_never_ends_its_line_is_shown_in_part(capsys, folders):
    c = Console(folders.append)
    c.feed(0, "stderr", b"y" * (console.LINE_KEPT + 7))
    c.finish()
    out, err = capsys.readouterr()
    assert err.startswith("[rank 0] yyyy")
    assert "7 characters are left out" in out


def test_a_line_of_the_length_that_is_kept_is_whole(capsys, folders):
    c = Console(folders.append)
    c.feed(0, "stdout", b"y" * console.LINE_KEPT + b"\n" + b"z" * console.LINE_KEPT)
    c.finish()
    assert "left out" not in capsys.readouterr().out


def kept_by(folder):
    return [path.read_text().splitlines() for path in sorted(folder.glob("printed-*"))]


def test_files_of_what_is_not_shown_have_a_limit(capsys, folders, tmp_path, monkeypatch):
    """One for all ranks of a call, and for the calls of a notebook together."""
    monkeypatch.setattr(console, "LINES_SHOWN", 0)
    monkeypatch.setattr(console, "BYTES_KEPT", 100)
    c = Console(folders.append)
    for rank in (0, 1):
        for _ in range(4):
            c.feed(rank, "stdout", b"x" * 10 + b"\n")  # 20 bytes with its rank: five of them fit
    c.finish()
    assert kept_by(tmp_path) == [[f"[rank 0] {'x' * 10}"] * 4 + [f"[rank 1] {'x' * 10}"]]
    first, second = capsys.readouterr().out.splitlines()
    assert "4 more lines are in" in first
    assert first.endswith("until this notebook ends")
    assert "4 more lines are in" in second
    assert second.endswith("; the last 3 of them are left out, to spare the disk")
    c = Console(folders.append)
    c.feed(0, "stdout", b"x\n")
    c.finish()
    said = capsys.readouterr().out
    assert said == "[rank 0] … 1 more lines could not be kept: there is no room for them\n"
    assert len(kept_by(tmp_path)) == 1  # no empty file remains


def test_a_nearly_full_disk_is_not_filled(capsys, folders, tmp_path, monkeypatch):
    monkeypatch.setattr(console, "LINES_SHOWN", 0)
    monkeypatch.setattr(console.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    c = Console(folders.append)
    c.feed(0, "stdout", b"%\n" * 20)
    c.finish()
    assert kept_by(tmp_path) == [["[rank 0] %"] * 4]  # half of what is free; 11 bytes each
    assert "the last 16 of them are left out" in capsys.readouterr().out


def test_after_a_line_without_room_no_shorter_one_is_kept(capsys, folders, tmp_path, monkeypatch):
    """A file with gaps would mislead its reader."""
    monkeypatch.setattr(console, "LINES_SHOWN", 0)
    monkeypatch.setattr(console, "BYTES_KEPT", 26)
    c = Console(folders.append)
    c.feed(0, "stdout", b"first\nsecond\n3\n")
    c.feed(0, "stdout", b"4\n")
    c.finish()
    assert kept_by(tmp_path) == [["[rank 0] first"]]
    assert "4 more lines" in (said := capsys.readouterr().out)
    assert "the last 3 of them are left out" in said


def test_every_kind_of_line_end_ends_a_line(capsys, folders):
    """A progress bar goes back to the beginning of its line."""
    c = Console(folders.append)
    c.feed(0, "stdout", b"one\r\ntwo\r50 %\r100 %\n\nend")
    c.finish()
    c.finish()  # everything is shown once
    lines = ["one", "two", "50 %", "100 %", "", "end"]
    assert capsys.readouterr().out == "".join(f"[rank 0] {line}\n" for line in lines)


@pytest.mark.parametrize("when", ["write", "close"])
def test_a_disk_that_fills_up_leaves_no_half_a_file(capsys, folders, tmp_path, monkeypatch, when):
    class Full:
        def write(self, data):
            if when == "write":
                raise OSError(28, "No space left on device")

        def close(self):
            if when == "close":
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(console, "LINES_SHOWN", 1)
    c = Console(folders.append)
    c.feed(0, "stdout", b"shown\nfirst\n")
    c.kept.file.close()
    c.kept.file = Full()
    c.feed(0, "stdout", b"second\n")
    c.feed(0, "stdout", b"third\n")
    c.finish()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "[rank 0] … 3 more lines could not be kept: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_later_calls_have_other_names(capsys, folders, tmp_path, monkeypatch):
    monkeypatch.setattr(console, "LINES_SHOWN", 0)
    for text in (b"a\n", b"b\n"):
        c = Console(folders.append)
        c.feed(2, "stdout", text)
        c.finish()
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"printed-0.txt": "[rank 2] a\n", "printed-1.txt": "[rank 2] b\n"}
    assert f"1 more lines are in {tmp_path / 'printed-1.txt'} until" in capsys.readouterr().out


def test_a_line_that_is_shown_ends_where_it_ends(capsys, folders, monkeypatch):
    monkeypatch.setattr(console, "LINE_SHOWN", 4)
    c = Console(folders.append)
    c.feed(0, "stderr", b"four\nfive5\n")
    assert capsys.readouterr().err == "[rank 0] four\n[rank 0] five…\n"
