"""Stacks, as faulthandler writes them."""

import faulthandler
import linecache
import subprocess
import sys
import tempfile

import torch.distributed as dist

from helpers.runtime.stacks import HERE, collective, doing, format_stack, frames

CELL = "<a cell for this test>"
TEXT = 'File "/tmp/ipykernel_1/2.py", line 4, in train'
SOURCE = "def train():\n    dump()\n"


def real_dump() -> str:
    """What faulthandler writes of a function that stands in no file."""
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(True), CELL)
    with tempfile.TemporaryFile("w+") as file:
        namespace = {"dump": lambda: faulthandler.dump_traceback(file, all_threads=False)}
        exec(compile(SOURCE, CELL, "exec"), namespace)
        namespace["train"]()
        file.seek(0)
        return file.read()


def test_frames_of_a_real_dump():
    stack = frames(real_dump())
    assert any((f.file, f.line, f.name) == (CELL, 2, "train") for f in stack)


def test_the_source_of_a_cell_is_shown():
    text = format_stack(real_dump())
    assert f'File "{CELL}", line 2, in train\n    dump()' in text


def test_only_the_last_dump_counts_and_our_own_frames_do_not():
    old = 'Current thread 0x1 (most recent call first):\n  File "/x/old.py", line 1 in old\n'
    new = (
        "Current thread 0x1 (most recent call first):\n"
        '  File "/x/new.py", line 2 in new\n'
        f'  File "{HERE}/worker.py", line 5 in run\n'
    )
    assert [f.name for f in frames(old + new)] == ["new"]


def test_the_collective_that_a_rank_is_in():
    file = dist.distributed_c10d.__file__
    dump = (
        "Stack (most recent call first):\n"
        f'  File "{file}", line 1 in all_reduce\n'
        f'  File "{file[: -len("distributed_c10d.py")]}c10d_logger.py", line 1 in wrapper\n'
        '  File "/x/cell.py", line 4 in train\n'
    )
    assert collective(frames(dump)) == "all_reduce"
    assert doing(dump) == "waiting in all_reduce, line 4 of /x/cell.py, in train"


def test_no_answer():
    assert doing("") == "not answering"
    assert format_stack("") == ""


def test_a_shell_that_names_no_cells_keeps_the_file():
    """IPython 7, which Colab has, cannot say which cell a file is."""
    program = f"""
from IPython.core.interactiveshell import InteractiveShell
from helpers.runtime.stacks import with_cell_names
print(with_cell_names({TEXT!r}))
InteractiveShell.instance().compile = __import__("codeop").Compile()
print(with_cell_names({TEXT!r}))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [TEXT, TEXT], done.stderr
