"""How a sandbox starts and ends, and what is said of it where it does not."""

import subprocess

import pytest

from helpers.check.grading import sandbox
from helpers.check.grading.sandbox import Limits, NotStarted, Sandbox
from tests.check.grading.test_sandbox_walls import pytestmark  # noqa: F401


def test_a_sandbox_has_room_for_the_largest_exercise():
    """On ranks, some imports need much; and a submission must not use all of a machine."""
    usual = Limits()
    assert (usual.memory_bytes, usual.file_bytes) == (6 << 30, 256 << 20)
    assert (usual.processes, usual.seconds) == (100, 600.0)


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
