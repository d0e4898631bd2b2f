"""A rank's program from its first message to its last, in a fork that joins nobody."""

import os
import signal
import socket
import sys
import time
from types import SimpleNamespace

import pytest

from helpers.runtime.local import rank
from helpers.runtime.local.channel import Channel, readable
from helpers.runtime.payload import Parcel, pack, unpack
from tests.runtime.local.test_bootstrap import forked
from tests.runtime.local.test_rank import SETUP


@pytest.fixture
def working(monkeypatch):
    """A rank at work: its channel, the file of its stacks, its outputs, its exit code."""
    here, there = map(Channel, socket.socketpair())
    (stacks, stacks_there), (out, out_there) = os.pipe(), os.pipe()

    def work():
        here.close()
        os.dup2(out_there, 1)
        os.dup2(out_there, 2)
        os._exit(rank.work(there, stacks_there))

    worker = SimpleNamespace(_channel=there, rank=2, _began=None)
    monkeypatch.setattr(rank, "join", lambda *of: worker)
    monkeypatch.setattr(rank, "leave", lambda setup: print("rank", setup.rank, "leaves"))
    monkeypatch.setattr(rank.ending, "finish", lambda: print("and ends"))
    child = forked(work)
    there.close()
    os.close(stacks_there)
    os.close(out_there)
    here.send(SETUP, fd=stacks)
    yield SimpleNamespace(
        line=here,
        pid=child,
        stacks=stacks,
        out=out,
        code=lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
    )
    here.close()
    os.close(stacks)
    os.close(out)


def call(line, fn):
    parcel = pack((fn, {}, {}))
    line.send("call", parcel.pickled, parcel.sizes, fd=parcel.fd)
    parcel.close()


def result(line):
    assert readable(line, 30)
    (kind, *rest), fd = line.receive()
    return unpack(Parcel(*rest, fd)) if kind == "result" else (kind, *rest)


@pytest.mark.timeout(100)
def test_calls_come_one_after_another_until_the_rank_may_leave(working, tmp_path):
    def writes(worker):
        global kept
        kept = open(tmp_path / "file", "w")  # noqa: SIM115
        kept.write("of the function")

    line = working.line
    line.send("environ", {"HELPERS_NEW": "1", "RANK": "9"})
    call(line, lambda worker: (os.environ["HELPERS_NEW"], os.environ["RANK"], os.getpid()))
    assert result(line) == ("1", "2", working.pid)  # its own rank is not the notebook's to set
    call(line, lambda worker: print("words") or print("more", file=sys.__stdout__) or 1 / 0)
    kind, report = result(line)
    assert (kind, report["kind"]) == ("error", "ZeroDivisionError")
    assert "rank.py" not in report["traceback"]
    assert readable(working.out, 30)
    assert os.read(working.out, 100) == b"words\nmore\n"
    call(line, writes)
    assert result(line) is None
    assert (tmp_path / "file").read_text() == "of the function"  # before the answer
    line.send("leave")
    assert working.code() == 0
    assert os.read(working.out, 100) == b"rank 2 leaves\nand ends\n"


@pytest.mark.timeout(100)
def test_a_rank_that_is_asked_writes_the_stack_of_its_main_thread(working):
    def waits(worker):
        print("ready")
        time.sleep(1000)

    call(working.line, waits)
    assert readable(working.out, 30)
    os.kill(working.pid, rank.STACK_SIGNAL)
    assert readable(working.stacks, 30)
    assert "in waits" in read_all(working.stacks, "in waits")
    os.kill(working.pid, signal.SIGABRT)
    assert working.code() == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in read_all(working.stacks, None)


def read_all(fd: int, last: str | None) -> str:
    """What is written up to this word, or to the end."""
    text = ""
    while (last is None or last not in text) and (part := os.read(fd, 10_000)):
        text += part.decode()
    return text


def test_a_failure_is_kept_for_a_debugger_and_told_after_its_prints(monkeypatch):
    said = []
    monkeypatch.setattr(rank.listener, "remember", lambda error: said.append(type(error)))
    monkeypatch.setattr(rank, "flush", lambda: said.append("flushed"))
    monkeypatch.setattr(rank.network, "hint", lambda error: f"a hint about {error}")
    line = SimpleNamespace(send=lambda kind, report: said.append((kind, report["hint"])))
    assert rank.answer(line, lambda: {}["x"]) is None
    assert said == [KeyError, "flushed", ("error", "a hint about 'x'")]
    assert rank.answer(line, lambda: 3) == 3
    assert len(said) == 3


@pytest.mark.timeout(100)
def test_without_the_notebook_a_rank_ends(working):
    working.line.close()
    assert working.code() == 1
