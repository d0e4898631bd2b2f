"""SIGKILL at every write: the newest whole checkpoint is the older or the new one, bit for bit.

A child process saves and cleans up. It makes each call that changes the disk in Python, and counts
them there: as many as strace sees. At one of them it kills itself, a file's bytes half written.
"""

import builtins
import io
import os
import shutil
import signal
import traceback
from pathlib import Path

import torch

from helpers.runtime.launch import launch
from helpers.state import checkpoint, seal
from helpers.state.all_parts import AllParts
from helpers.state.background import Background
from helpers.state.part import Part

SHAPES = {"matrix": (50, 70)}
PARTS = AllParts([{n: Part(name=n, shape=s, holders=(0,)) for n, s in SHAPES.items()}])
CALLS = ("rename", "replace", "mkdir", "rmdir", "unlink", "remove", "truncate")
NEVER = 10**9


class Killer:
    """Kill this process at a call that changes the disk.

    The machine lives on, so that no file waits for the disk: what the kernel has is not lost.
    """

    def __init__(self, at: int):
        self.left, self.open = at, builtins.open
        for name in CALLS:
            setattr(os, name, self.before(getattr(os, name)))
        os.fsync = self.before(lambda handle: None)
        builtins.open = io.open = self.opened

    def due(self) -> bool:
        self.left -= 1
        return self.left < 0

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def before(self, call):
        return lambda *given, **named: self.die() if self.due() else call(*given, **named)

    def opened(self, file, mode="r", *given, **named):
        if not set(mode) & set("wax+"):
            return self.open(file, mode, *given, **named)
        if self.due():
            self.die()
        stream = io.BufferedWriter(Raw(file, mode.strip("bt"), self))
        return stream if "b" in mode else io.TextIOWrapper(stream)


class Raw(io.FileIO):
    def __init__(self, file, mode: str, killer: Killer):
        super().__init__(file, mode)
        self.killer = killer

    def write(self, data) -> int:
        if self.killer.due():
            super().write(memoryview(data)[: len(data) // 2])
            self.killer.die()
        return super().write(data)


def state(k: int) -> tuple[dict, dict]:
    local = {name: torch.full(shape, float(k)) for name, shape in SHAPES.items()}
    return local, {
        n: {"exp_avg": t + 0.5, "step": torch.tensor(float(k))} for n, t in local.items()
    }


def saves(folder: Path, k: int, at: int):
    background = Background()
    Killer(at)
    background.save(folder / f"step_{k}", None, PARTS, *state(k), {"updates": k})
    background.wait()
    seal.prune(folder, keep=1)


def in_child(folder: Path, k: int, at: int = NEVER) -> int:
    """Save in a fork of this process. Returns its exit code, or -signal."""
    if (pid := os.fork()) == 0:
        try:
            saves(folder, k, at)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def found(folder: Path) -> int:
    """The number of the newest whole checkpoint, if all of its numbers are of one state."""
    path = seal.newest(folder)
    local = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    kept = checkpoint.load(path, None, PARTS, local)
    k = checkpoint.notes(path)["updates"]
    assert path.name == f"step_{k}"
    right, moments = state(k)
    for name in SHAPES:
        assert torch.equal(local[name], right[name])
        assert all(torch.equal(kept[name][slot], moments[name][slot]) for slot in moments[name])
    return k


def killed_everywhere(worker, folder):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the children are forks of this rank
    first = Path(folder, "first")
    checkpoint.save(first / "step_1", None, PARTS, *state(1), {"updates": 1})
    numbers, code = [], None
    while code != 0:
        here = Path(folder, str(len(numbers)))
        shutil.copytree(first, here)
        code = in_child(here, 2, at=len(numbers))
        assert code in (0, -signal.SIGKILL)
        numbers.append(found(here))
        if len(numbers) % 3 == 0:  # the next life saves, and leaves nothing of the kill
            assert in_child(here, 3) == 0
            assert found(here) == 3
            assert [path.name for path in here.iterdir()] == ["step_3"]
        shutil.rmtree(here)
    return numbers


def test_a_kill_at_any_write_leaves_a_whole_checkpoint(tmp_path):
    [numbers] = launch(killed_everywhere, 1, device="cpu", folder=str(tmp_path))
    older, newer = numbers.count(1), numbers.count(2)
    assert numbers == [1] * older + [2] * newer
    assert older > 15
    assert newer > 5
