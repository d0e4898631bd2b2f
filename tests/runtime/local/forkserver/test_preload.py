"""What the server imports, how it lets the first generation pass, and what it never asks."""

import importlib
import subprocess
import sys
import time

import pytest

from helpers.runtime.local.forkserver import preload
from helpers.runtime.local.forkserver.preload import GiveWay

# PyTorch, as a build for CUDA: it notes each question for a device. After such a question CUDA
# refuses to start in a fork, and `_cuda_isInBadFork` says so. Real functions are called too.
FAKE = """
import os, sys, threading, torch
asked, parent = [], os.getpid()
def note(name, value):
    real = getattr(torch._C, name, lambda *_: value)
    def answer(*args):
        asked.append(name)
        return real(*args)
    setattr(torch._C, name, answer)
for name in ("_cuda_init", "_cuda_getCurrentRawStream", "_cuda_getDevice"):
    note(name, 0)
note("_cuda_getDeviceCount", 1)
for name in dir(torch._C):
    if name.startswith("_accelerator_"):
        note(name, None)
if not hasattr(torch._C, "_cuda_isInBadFork"):
    torch._C._cuda_isInBadFork = lambda: bool(asked) and os.getpid() != parent
def show(what):
    sys.stdout.flush()
    if (rank := os.fork()) == 0:
        print(what, asked, threading.active_count(), torch._C._cuda_isInBadFork(), flush=True)
        os._exit(0)
    os.waitpid(rank, 0)
from helpers.runtime.local.forkserver import preload
"""
# The server's imports, one after the other, each followed by a fork, as a rank is; then a question.
IMPORTS = """
preload.import_first()
show("first")
names, preload.OF_A_STEP = preload.OF_A_STEP, ()
for name in names:
    preload.OF_A_STEP = (name,)
    preload.import_rest()
    show(name)
assert "torch._dynamo" in sys.modules
torch.cuda.is_available()
show("a question")
"""


def ask(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FAKE + program], capture_output=True, text=True, timeout=120
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_after_each_import_a_fork_may_still_use_cuda():
    *imports, question = ask(IMPORTS).splitlines()
    assert imports == [f"{name} [] 1 False" for name in ("first", *preload.OF_A_STEP)]
    assert question == "a question ['_cuda_getDeviceCount'] 1 True"  # so a question does show


@pytest.fixture
def give_way():
    with GiveWay() as finder:
        yield finder


@pytest.fixture
def module(tmp_path, monkeypatch):
    tmp_path.joinpath("some_module_for_the_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "some_module_for_the_test"
    sys.modules.pop("some_module_for_the_test", None)


def seconds_to_import(name):
    began = time.monotonic()
    importlib.import_module(name)
    return time.monotonic() - began


def test_an_import_waits_while_there_is_a_call(give_way, module):
    began = time.monotonic()
    give_way.busy(0.4)
    importlib.import_module(module)
    assert time.monotonic() - began > 0.39


def test_it_goes_on_once_there_is_none(give_way, module):
    give_way.busy(60)
    give_way.busy(0)
    assert seconds_to_import(module) < 10


def test_the_word_reaches_a_fork(give_way):
    import os

    if (child := os.fork()) == 0:
        give_way.busy(100)
        os._exit(0)
    os.waitpid(child, 0)
    assert give_way.until() > time.monotonic() + 50
    assert give_way not in sys.meta_path[1:]


def test_at_the_end_only_its_own_pause_is_taken_away():
    first = type("First", (), {"find_spec": lambda *_: None})()
    with GiveWay() as finder:
        assert sys.meta_path[0] is finder  # before any other
        sys.meta_path.insert(0, first)
    try:
        assert first in sys.meta_path
        assert finder not in sys.meta_path
    finally:
        sys.meta_path.remove(first)


def test_patience_is_used_up_over_all_imports(give_way, monkeypatch):
    """So the server is complete at last, however many calls there are."""
    now, slept = [100.0], []
    monkeypatch.setattr(preload.time, "monotonic", lambda: now[0])

    def sleep(seconds):
        slept.append(seconds)
        now[0] += 0.5

    monkeypatch.setattr(preload.time, "sleep", sleep)
    assert give_way.patience == preload.PATIENCE_SECONDS == 3.0
    give_way.busy(1.2)
    assert give_way.until() == 101.2
    assert give_way.find_spec("x") is None
    assert len(slept) == 3
    give_way.busy(100)
    give_way.find_spec("y")
    give_way.find_spec("z")
    assert len(slept) == 6


def test_what_a_step_imports_may_be_missing_and_finalizers_are_left_out():
    program = """
import sys, weakref
from helpers.runtime.local.forkserver import preload
class Thing: pass
thing = Thing()
weakref.finalize(thing, print, "called at the end")
preload.leave_standing()
weakref.finalize(thing, print, "of the rank itself")
preload.OF_A_STEP = ("no.such.part", "colorsys", "json.no_such_part", "wave")
preload.import_rest()
print({"colorsys", "wave"} <= set(sys.modules), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True False\nof the rank itself\n", done.stderr
