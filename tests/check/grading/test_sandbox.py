"""How a sandbox starts and ends, and what is said of it where it does not."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from helpers.check.grading import sandbox
from helpers.check.grading.sandbox import (
    Broken,
    Late,
    Limits,
    NotStarted,
    Sandbox,
    memory_of,
    nameless_files,
    pages,
)
from tests.check.grading.conftest import NEEDS_SANDBOX


class Never:
    def wait(self, seconds):
        raise subprocess.TimeoutExpired("x", seconds)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit 0", "with exit code 0"),
        ("exit 7", "with exit code 7"),
        ("kill -SEGV $$", "with SIGSEGV"),
        ("exit 139", "with SIGSEGV"),  # as bwrap passes it on
        ("exit 200", "with exit code 200"),
        (None, "without an answer"),
    ],
)
def test_how_the_program_has_ended(how, words):
    shut = object.__new__(Sandbox)
    shut.process = subprocess.Popen(["sh", "-c", how]) if how else Never()
    assert shut.ending() == words


@NEEDS_SANDBOX
def test_a_program_that_does_not_start_is_no_fault_of_the_submission(monkeypatch):
    monkeypatch.setattr(sandbox.sys, "executable", "/bin/false")
    for trusted in (False, True):
        with pytest.raises(NotStarted, match="does not start: it has ended the process with exit"):
            Sandbox(trusted=trusted)
        monkeypatch.setattr(sandbox, "bubblewrap", lambda: None)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(script): the next sandbox is this shell script, without walls."""

    def write(script):
        file = tmp_path / "program"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sandbox.sys, "executable", str(file))
        monkeypatch.setattr(sandbox, "bubblewrap", lambda: None)

    return write


READY = "head -c 8; "  # the answer to the first order, which is empty


@pytest.mark.parametrize(
    ("script", "limits", "seconds", "error", "words"),
    [
        ("exec sleep 60", {}, 0.3, Late, "not returned after 0 seconds"),
        ("exec sleep 60", {"seconds": 0.4}, 50.0, Late, "taken more than 0 seconds in all"),
        ("exit 7", {}, 30.0, Broken, "ended the process with exit code 7"),
        (r"printf '\377\377\377\377\377\0\0\0'; exec sleep 60", {}, 30.0, Broken,
         "answered with a message of 1,099,511,627,775 bytes; at most 67,108,864 are read"),
    ],
)  # fmt: skip
def test_what_gives_no_answer_is_ended(program, script, limits, seconds, error, words):
    """An order larger than a pipe holds must not wait for a program that reads no more."""
    program(READY + script)
    with Sandbox(Limits(**limits), trusted=True) as shut:
        began = time.monotonic()
        with pytest.raises(Broken, match=f"^{words}$") as caught:
            shut.ask(bytes(1_000_000 if error is Late else 1), seconds)
        assert time.monotonic() - began < 30
        assert type(caught.value) is error
        assert shut.process.returncode is not None


@pytest.mark.parametrize(
    ("count", "used", "why"),
    [
        (3, 5 << 20, ""),
        (0, 0, ""),
        (4, 0, "started more than 3 processes"),
        (1, (5 << 20) + 1, "used more than 5 MB of memory"),
        (1, 9_000 << 20, "used more than 5 MB of memory"),
    ],
)
def test_a_limit_may_be_reached_but_not_passed(monkeypatch, count, used, why):
    looked, shut = [], object.__new__(Sandbox)
    shut.limits, shut.why, shut.look_again = Limits(memory_bytes=5 << 20, processes=3), "", 0.0
    shut.family = lambda: looked.append(1) or ["a process"] * count
    monkeypatch.setattr(sandbox, "memory_of", lambda family, enough: used * (enough == 5 << 20))
    assert shut.within_limits() == (not why)
    assert shut.why == why
    shut.look_again += 60  # a look takes time: not at every turn
    assert shut.within_limits() == (not why)
    assert looked == [1]
    shut.look_again = 0.0
    shut.within_limits()
    assert looked == [1, 1]


def test_why_there_is_no_sandbox(monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + ":/usr/bin:/bin")
    sandbox.why_not.cache_clear()
    assert "forbids bubblewrap (setting up uid map: Permission denied)" in sandbox.why_not()
    assert sandbox.bubblewrap() is None
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    sandbox.why_not.cache_clear()
    assert "missing" in sandbox.why_not()
    sandbox.why_not.cache_clear()


HOLDS = """
import mmap, os
print(flush=True)
input()
file = os.memfd_create("x")
again = os.dup(file)
os.write(file, bytes(8 << 20))
os.ftruncate(file, 1 << 30)  # what is not written takes no memory
print(flush=True)
input()
mapped = mmap.mmap(file, 8 << 20)
print(sum(mapped[:: mmap.PAGESIZE]), flush=True)  # all pages are read
input()
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there are no files without a name")
def test_a_file_without_a_name_counts_once_mapped_or_not():
    gone = psutil.Popen(["true"])
    gone.wait()
    # a process of its own: of this one, earlier tests' memory may be freed while it counts
    command, pipe = [sys.executable, "-c", HOLDS], subprocess.PIPE
    with psutil.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        holder.stdout.readline()
        whole = memory_of([holder], enough=0)
        assert nameless_files([holder]) == 0
        print(file=holder.stdin, flush=True)
        holder.stdout.readline()
        assert nameless_files([gone, holder, holder]) == 8 << 20
        print(file=holder.stdin, flush=True)
        assert holder.stdout.readline() == "0\n"
        assert 6 << 20 < memory_of([holder], enough=0) - whole < 15 << 20
        quick_count = memory_of([holder], enough=1 << 40)
        assert abs(quick_count - pages(holder, exact=False) - (8 << 20)) < 4 << 20
        print(file=holder.stdin, flush=True)
    assert nameless_files([holder]) == 0


def test_the_exact_count_begins_above_enough(monkeypatch):
    def known(process, exact):
        return {"a": 10, "b": 20, "c": 40}[process] if exact else 50

    monkeypatch.setattr(sandbox, "pages", known)
    monkeypatch.setattr(sandbox, "nameless_files", lambda family: 7 * len(family))
    assert memory_of("abc", enough=171) == 171
    assert memory_of("abc", enough=170) == 91  # the quick count without the files is below


def test_a_process_that_has_ended_or_refuses_to_be_looked_at(monkeypatch):
    """A program may forbid the look: its own pages count all the same."""
    child = psutil.Popen(["true"])
    child.wait()
    assert memory_of([child], enough=-1) == pages(child, exact=True) == nameless_files([child]) == 0
    me = psutil.Process()
    usual = me.memory_info()

    def refuse(_):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "memory_maps", refuse)
    assert pages(me, exact=True) == pytest.approx(usual.rss - usual.shared, rel=0.1)
