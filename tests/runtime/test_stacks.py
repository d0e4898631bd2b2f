"""Stacks, as faulthandler writes them."""

import faulthandler
import linecache
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from helpers.runtime.stacks import (
    BEGIN,
    HERE,
    cell_name,
    collective,
    doing,
    format_stack,
    frames,
    library,
    ours,
    with_cell_names,
)

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


FILE = dist.distributed_c10d.__file__


@pytest.mark.parametrize(
    "begin",
    ["Stack (most recent call first):", "Current thread 0x1:", "Fatal Python error: Aborted\n"],
)
def test_only_what_follows_the_last_beginning_counts(begin):
    """Of a crash, faulthandler writes its own first line."""
    one, other = (f'  File "/x/{name}.py", line 2 in {name}\n' for name in ("one", "other"))
    assert [f.name for f in frames(f"{begin}\n{one}{begin}\n{other}")] == ["other"]


def test_what_started_the_function_is_left_out():
    dump = (
        'Stack (most recent call first):\n  File "/x/cell.py", line 4 in train\n'
        f'  File "{BEGIN}", line 9 in run\n  File "/x/below.py", line 1 in below\n'
        '  File "<frozen runpy>", line 1 in start\n'
    )
    assert [f.name for f in frames(dump)] == ["train"]


def test_a_collective_of_collectives_is_named_as_it_was_called():
    """`all_gather_object` gathers sizes, and then the objects."""
    dump = (
        f'Stack (most recent call first):\n  File "{FILE}", line 1 in all_gather\n'
        f'  File "{FILE}", line 2 in all_gather_object\n  File "{FILE}", line 3 in wrapper\n'
        '  File "/x/cell.py", line 4 in train\n'
    )
    assert collective(frames(dump)) == "all_gather_object"
    assert collective(frames('Stack:\n  File "/x/cell.py", line 4 in all_gather\n')) is None


def test_the_line_is_the_student_s_own():
    """Not one of a library that it has called; of a library alone, the innermost."""
    library = f'Stack:\n  File "{sys.base_prefix}/lib/random.py", line 5 in seed\n'
    library += '  File "/y/site-packages/torch/nn.py", line 6 in forward\n'
    own = '  File "/x/cell.py", line 4 in train\n  File "/x/cell.py", line 9 in main\n'
    assert doing(library + own) == "running, line 4 of /x/cell.py, in train"
    assert doing(library).endswith("/lib/random.py, in seed")
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(True), CELL)
    assert doing(f'Stack:\n  File "{CELL}", line 2 in train\n').endswith("in train: dump()")


def test_a_stack_is_shown_with_its_innermost_frame_last():
    own = '  File "/x/cell.py", line 4 in train\n  File "/x/cell.py", line 9 in main\n'
    shown = '  File "/x/cell.py", line 9, in main\n  File "/x/cell.py", line 4, in train'
    assert format_stack(f"Stack:\n{own}") == shown
    inside = f'  File "{FILE}", line 2 in all_reduce\n  File "{FILE}", line 3 in wrapper\n'
    assert format_stack(f"Stack:\n{inside}{own}") == shown
    assert "all_reduce" in format_stack(f"Stack:\n{inside}")


def test_cells_have_names_and_files_keep_theirs(monkeypatch):
    def name(file):
        return ("Cell", "In[3]") if "ipykernel" in file else None

    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=name))
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert with_cell_names(f'{TEXT}\n  File "/x/a.py", line 1') == (
        'Cell In[3], line 4, in train\n  File "/x/a.py", line 1'
    )
    ipython.get_ipython = lambda: None
    assert cell_name("/tmp/ipykernel_1/2.py") == "/tmp/ipykernel_1/2.py"


@pytest.mark.parametrize(
    ("file", "of_a_library", "of_this_package"),
    [
        ("/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", True, False),
        (f"{sys.base_prefix}/lib/python3.11/threading.py", True, False),
        (f"{HERE}/worker.py", False, True),
        (f"{Path(HERE).parent}/training/loop.py", False, False),  # what students read
        ("/home/student/train.py", False, False),
    ],
)
def test_whose_a_file_is(file, of_a_library, of_this_package):
    assert (library(file), ours(file)) == (of_a_library, of_this_package)
