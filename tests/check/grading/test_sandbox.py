"""How a sandbox starts and ends, and what is said of it where it does not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from helpers.check.grading import inside, sandbox
from helpers.check.grading.sandbox import COURSE, Broken, Late, Limits, NotStarted, Sandbox
from tests.check.grading.test_sandbox_walls import pytestmark  # noqa: F401


def test_a_sandbox_has_room_for_the_largest_exercise():
    """On ranks, some imports need much; and a submission must not use all of a machine."""
    usual = Limits()
    assert (usual.memory_bytes, usual.file_bytes) == (6 << 30, 256 << 20)
    assert (usual.processes, usual.seconds) == (100, 600.0)


def test_the_walls_of_a_sandbox(monkeypatch):
    """`test_sandbox_walls.py` shows what they keep out."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    given = " ".join(sandbox.walls(Limits(file_bytes=77)))
    helpers = f"{COURSE}/helpers"
    first, weeks = given.split(f" --ro-bind {helpers} {helpers} ")
    assert first.startswith("--unshare-all --die-with-parent --new-session --clearenv ")
    for option in (
        "--cap-drop ALL", "--proc /proc", "--dev /dev", "--size 77 --tmpfs /tmp",
        "--size 77 --tmpfs /dev/shm", "--ro-bind-try /usr /usr",
        f"--ro-bind {sys.prefix} {sys.prefix}",
    ):  # fmt: skip
        assert f" {option} " in f" {first} "
    hidden = "".join(f"--tmpfs {helpers}/check/week{week:02} " for week in range(1, 11))
    assert weeks == (
        f"{hidden}--setenv PATH {os.path.dirname(sys.executable)}:/usr/bin:/bin --setenv HOME /tmp "
        f"--setenv LANG C.UTF-8 --setenv PYTHONPATH {COURSE} --setenv PYTHONDONTWRITEBYTECODE 1 "
        "--setenv OMP_NUM_THREADS 1 --chdir /tmp"
    )


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


def test_each_order_has_an_answer(program):
    program("exec cat")
    with Sandbox(Limits(file_bytes=77), trusted=True) as shut:
        assert shut.process.args[1:] == ["-m", inside.__name__, "77"]
        assert [shut.ask(order, 60.0) for order in (b"one", b"", b"two")] == [b"one", b"", b"two"]
        assert os.getsid(shut.process.pid) == shut.process.pid
    assert shut.process.returncode == -signal.SIGKILL
    assert shut.process.stdin.closed
    assert shut.process.stdout.closed
    assert not os.path.exists(shut.folder.name)


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
    program(READY + script)
    with Sandbox(Limits(**limits), trusted=True) as shut:
        began = time.monotonic()
        with pytest.raises(Broken, match=f"^{words}$") as caught:
            shut.ask(b"x", seconds)
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
