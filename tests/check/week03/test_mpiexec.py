"""Starting and ending mpiexec: doubles of the program, of a process and of the clock."""

import os
import subprocess
import sys
from types import SimpleNamespace

import cloudpickle
import pytest

from helpers.check.week03 import mpiexec
from helpers.check.week03.mpiexec import Folder, NoMPI, end, find_mpiexec, run_on_mpi_ranks, wait
from helpers.runtime.private import is_own, private_folder

SHOWS = """#!/bin/sh
echo "given $*"
echo "threads $OMP_NUM_THREADS" >&2
echo "paths $PYTHONPATH"
echo "group $(ps -o pgid= -p $$) of $$"
cat
for last; do folder=$last2; last2=$last; done
cp "$folder/digits" "$folder/report-1-2"
"""


def program(folder, name="mpiexec", text=SHOWS):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder / name)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """An mpiexec of this installation that shows what it was given, and mpi4py."""
    path = program(tmp_path / "scripts")
    monkeypatch.setattr(mpiexec.sysconfig, "get_path", {"scripts": str(tmp_path / "scripts")}.get)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace())
    monkeypatch.setattr(mpiexec, "private", lambda: ("env", "ALONE=1"))
    return path


def test_the_ranks_get_the_function_and_the_inputs(installed, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/elsewhere"])
    factor = 3
    folder = run_on_mpi_ranks(lambda x: factor * x, 5, {"digits": b"12"}, 2.5)
    assert folder.path.parent == private_folder()
    assert folder.path.name.startswith("mpi-")
    assert is_own(folder.path.stat())
    assert cloudpickle.loads((folder.path / "function").read_bytes())(14) == 42
    assert (folder.path / "digits").read_bytes() == b"12"
    arguments, *rest = folder.printed().splitlines()
    program = "helpers.check.week03.mpi_rank"
    assert arguments == f"given -n 5 {sys.executable} -m {program} {folder.path} 2.5"
    root = os.path.abspath(f"{mpiexec.__file__}/../../../..")
    assert rest[:2] == ["threads 1", f"paths {root}:{tmp_path}:/elsewhere"]
    group, number = rest[2].removeprefix("group ").split(" of ")
    assert int(group) == int(number)  # a group of its own, which can be killed
    assert rest[3:] == []  # its input is empty
    assert folder.report(1, 2) == "12"
    assert folder.report(2, 1) is None


def test_mpiexec_runs_in_its_own_network(installed, monkeypatch):
    program(mpiexec.Path(installed).parent, text='#!/bin/sh\necho "alone $ALONE, $KEPT"\n')
    monkeypatch.setenv("KEPT", "kept")
    assert run_on_mpi_ranks(None, 1, {}, 1.0).printed() == "alone 1, kept\n"


def test_nothing_that_is_typed_reaches_mpiexec(installed):
    source, typed = os.pipe()
    os.write(typed, b"typed")
    os.close(typed)
    kept = os.dup(0)
    os.dup2(source, 0)
    try:
        folder = run_on_mpi_ranks(None, 1, {"digits": b""}, 1.0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(source)
    assert "typed" not in folder.printed()


def test_an_interrupt_ends_mpiexec(installed, monkeypatch):
    ended = []

    def interrupted(process, folder):
        raise KeyboardInterrupt

    def noted(process):
        ended.append(process.wait())

    monkeypatch.setattr(mpiexec, "wait", interrupted)
    monkeypatch.setattr(mpiexec, "end", noted)
    with pytest.raises(KeyboardInterrupt):
        run_on_mpi_ranks(None, 1, {"digits": b""}, 1.0)
    assert ended == [0]


def test_this_installation_s_mpiexec_comes_first(installed, monkeypatch, tmp_path):
    other = program(tmp_path / "other")
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert find_mpiexec() == installed
    os.remove(installed)
    assert find_mpiexec() == other
    os.remove(other)
    with pytest.raises(NoMPI, match=r"no mpiexec on this machine.*pip install mpich"):
        find_mpiexec()


def test_without_mpi4py_there_is_no_mpi(installed, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(NoMPI, match=r"mpi4py is not installed.*pip install mpi4py"):
        find_mpiexec()


@pytest.mark.parametrize(
    ("missing", "status", "found"),
    [(None, 0, mpiexec.PRIVATE), (None, 1, ()), ("ip", 0, ()), ("unshare", 0, ())],
)
def test_a_network_of_its_own_where_the_system_allows_it(monkeypatch, missing, status, found):
    tried = []

    def run(line, capture_output):
        assert capture_output
        tried.append(line)
        return SimpleNamespace(returncode=status)

    monkeypatch.setattr(mpiexec.shutil, "which", lambda name: None if name == missing else name)
    monkeypatch.setattr(mpiexec.subprocess, "run", run)
    assert mpiexec.private.__wrapped__() == found
    assert tried == ([] if missing else [[*mpiexec.PRIVATE, "true"]])


def test_alone_there_is_only_the_loopback_and_an_empty_shared_memory():
    if not mpiexec.private():
        pytest.skip("this system allows no network of one's own")
    show = 'ip -o link; ls -A /dev/shm; echo "$0 $1 $2"'
    line = [*mpiexec.private(), "sh", "-c", show, "a b", "c", "d"]
    links, *rest = subprocess.run(line, capture_output=True, text=True).stdout.splitlines()
    assert links.startswith("1: lo: <LOOPBACK,UP")
    assert rest == ["a b c d"]


class Clock:
    """Time passes only in a sleep."""

    def __init__(self):
        self.now, self.slept = 1000.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.slept.append(seconds)


class Process:
    """Ends after so many questions; never without a number. `deaf`: only a kill ends it."""

    pid = 4321

    def __init__(self, questions=None, deaf=False):
        self.left, self.deaf, self.log = questions, deaf, []

    def poll(self):
        if self.left is None:
            return None
        self.left -= 1
        return None if self.left >= 0 else 0

    def terminate(self):
        self.log.append("terminate")

    def wait(self, timeout=None):
        self.log.append(f"wait {timeout}")
        if self.deaf and timeout is not None:
            raise subprocess.TimeoutExpired("mpiexec", timeout)


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(mpiexec, "time", found)
    return found


def test_waiting_ends_with_mpiexec(clock, tmp_path):
    wait(Process(3), Folder(tmp_path))
    assert clock.slept == [0.02] * 3


def test_waiting_ends_after_ninety_seconds(clock, tmp_path):
    wait(Process(), Folder(tmp_path))
    assert 1090 <= clock.now < 1090.03


def test_waiting_ends_after_a_hang_when_the_others_could_write(clock, tmp_path):
    (tmp_path / "stack-0").write_text("")
    (tmp_path / "stack-2").write_text("Thread")
    wait(Process(), Folder(tmp_path))
    assert clock.slept == [1.0]


def test_the_end_of_a_process(monkeypatch):
    over, hears, deaf = Process(0), Process(), Process(deaf=True)
    monkeypatch.setattr(mpiexec.os, "killpg", lambda *given: deaf.log.append(given))
    for process in (over, hears, deaf):
        end(process)
    assert over.log == ["wait 5"]
    assert hears.log == ["terminate", "wait 5"]
    assert deaf.log == ["terminate", "wait 5", (4321, 9), "wait None"]


def test_what_ranks_have_written(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "report-0-1").write_text("{}")
    (tmp_path / "printed").write_bytes(b"a \xff b")
    for rank, text in ((10, "ten"), (2, "two"), (1, "")):
        (tmp_path / f"stack-{rank}").write_text(text)
    assert folder.path == tmp_path
    assert folder.report(0, 1) == "{}"
    assert folder.report(1, 0) is None
    assert folder.stacks() == {10: "ten", 2: "two"}
    assert folder.printed() == "a \N{REPLACEMENT CHARACTER} b"
