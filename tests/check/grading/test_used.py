"""Memory of a family of processes: shared pages count once, files without a name too."""

import mmap
import os

import psutil
import pytest

from helpers.check.grading import used
from helpers.check.grading.used import counted, memory_of, nameless_files, proportional, quick

SMAPS = """7f00-7f10 rw-p 00000000 00:00 0
Size:               64 kB
Pss:                16 kB
7f20-7f30 rw-s 00000000 00:01 5  /memfd:helpers (deleted)
Pss:                32 kB
VmFlags: rd wr
7f40-7f50 rw-s 00000000 00:01 6  /dev/zero (deleted)
Pss:                 4 kB
""".splitlines()


def test_the_share_of_each_mapping():
    assert counted(SMAPS) == 20 << 10


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there are no files without a name")
def test_a_file_without_a_name_counts_once_mapped_or_not():
    me = psutil.Process()
    before, whole = nameless_files([me]), memory_of([me], enough=0)
    gone = psutil.Popen(["true"])
    gone.wait()
    file = os.memfd_create("x")
    again = os.dup(file)
    try:
        os.write(file, bytes(8 << 20))
        os.ftruncate(file, 1 << 30)  # what is not written takes no memory
        assert nameless_files([gone, me, me]) - before == 8 << 20
        assert 6 << 20 < memory_of([me], enough=0) - whole < 64 << 20
        quick_count = memory_of([me], enough=1 << 40)
        assert abs(quick_count - quick([me]) - (before + (8 << 20))) < 4 << 20
    finally:
        os.close(file)
        os.close(again)
    assert nameless_files([me]) == before


def test_the_exact_count_only_where_it_matters():
    me = psutil.Process()
    assert memory_of([me], enough=1 << 40) >= 0.9 * quick([me])
    exact = memory_of([me], enough=0)
    assert 0 < exact < 1.2 * quick([me])


def test_the_exact_count_begins_above_enough(monkeypatch):
    monkeypatch.setattr(used, "quick", lambda family: 50 * len(family))
    monkeypatch.setattr(used, "nameless_files", lambda family: 7 * len(family))
    monkeypatch.setattr(used, "proportional", {"a": 10, "b": 20, "c": 40}.get)
    assert memory_of("abc", enough=171) == 171
    assert memory_of("abc", enough=170) == 91  # the quick count without the files is below
    assert memory_of("abc", enough=100) == 91


def test_a_mapped_file_may_have_any_name(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff"
    with open(path, "w+b") as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        with mmap.mmap(file.fileno(), mmap.PAGESIZE):
            assert proportional(psutil.Process()) > 0


def test_every_process_counts():
    me = psutil.Process()
    assert quick([me, me]) == pytest.approx(2 * quick([me]), rel=0.1)
    assert memory_of([me, me], enough=0) == pytest.approx(2 * memory_of([me], enough=0), rel=0.1)


def test_a_process_that_has_ended():
    child = psutil.Popen(["true"])
    child.wait()
    assert memory_of([child], enough=0) == 0
    assert quick([child, psutil.Process()]) > 1 << 20
    assert proportional(child) == nameless_files([child]) == 0


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_without_the_right_to_look_its_own_pages_count(monkeypatch, error):
    """On other systems there is no such file."""

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(used, "open", refuse, raising=False)
    me = psutil.Process()
    assert proportional(me) == pytest.approx(
        me.memory_info().rss - me.memory_info().shared, rel=0.1
    )
    child = psutil.Popen(["true"])
    child.wait()
    assert proportional(child) == 0
