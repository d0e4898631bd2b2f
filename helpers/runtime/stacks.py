"""Read where a rank is from faulthandler's output, written on request or in a crash."""

import linecache
import os
import re
import sys
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from helpers.runtime.screen import shell

HERE = str(Path(__file__).parent)
BEGIN = f"{HERE}/local/rank/program.py"  # frames below start the process


class Frame(NamedTuple):
    file: str
    line: int
    name: str


def ours(file: str) -> bool:
    """Is this a file of this folder, or of Python's own imports?"""
    return file.startswith((HERE, "<frozen"))


def library(file: str) -> bool:
    """Is this a file of an installed package, or of Python?"""
    return "site-packages" in file or file.startswith(sys.base_prefix)


IN_TORCH = re.compile(r"torch/distributed/(distributed_c10d|c10d_logger)\.py$")
STACK_LINE = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def frames(dump: str) -> list[Frame]:
    """Return the frames of faulthandler's latest output, the innermost first."""
    last = re.split(r"^(?:Stack|Current thread|Fatal Python error).*$", dump, flags=re.M)[-1]
    found = (STACK_LINE.match(line) for line in last.splitlines())
    all_frames = [Frame(m[1], int(m[2]), m[3]) for m in found if m]
    inside = takewhile(lambda f: f.file != BEGIN, all_frames)
    return [f for f in inside if not ours(f.file)]


def collective(stack: list[Frame]) -> str | None:
    """Return the name of the torch.distributed call that the rank is in, or None."""
    inside = [f.name for f in stack if "torch/distributed/distributed_c10d" in f.file]
    return next((name for name in reversed(inside) if name != "wrapper"), None)


def doing(dump: str) -> str:
    """Describe a rank's activity in one line, from its stack."""
    stack = frames(dump)
    if not stack:
        return "not answering"
    place = next((f for f in stack if not library(f.file)), stack[0])
    where = f"line {place.line} of {cell_name(place.file)}, in {place.name}"
    source = linecache.getline(place.file, place.line).strip()
    call = collective(stack)
    return (
        f"{f'waiting in {call}' if call else 'running'}, {where}{f': {source}' if source else ''}"
    )


def format_stack(dump: str) -> str:
    """Write the stack as a traceback does; without the frames inside a call of torch.distributed.

    `doing` names that call.
    """
    stack, lines = frames(dump), []
    outside = [f for f in stack if not IN_TORCH.search(f.file)]
    for f in reversed(outside or stack):
        lines.append(f'  File "{f.file}", line {f.line}, in {f.name}')
        if source := linecache.getline(f.file, f.line).strip():
            lines.append(f"    {source}")
    return with_cell_names("\n".join(lines))


def cell_name(file: str) -> str:
    """Return `Cell In[3]` for the code of a cell, else the file name."""
    session = shell()
    name = getattr(session.compile, "format_code_name", None) if session else None  # IPython 8 on
    label = name(file) if name else None  # Colab has IPython 7
    return f"{label[0]} {label[1]}" if label else file


def with_cell_names(text: str) -> str:
    """Replace the temporary file names of cells by `Cell In[3]`: those files do not exist."""

    def replace(match):
        name = cell_name(match[1])
        return match[0] if name == match[1] else name

    return re.sub(r'File "([^"]+)"', replace, text)


def cell_sources() -> dict[str, str]:
    """Return the text of every cell that ran, by the file name in its tracebacks."""
    return {
        name: "".join(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and not os.path.exists(name)
    }


def know_cells(sources: dict[str, str]):
    """Have tracebacks and `inspect` show cells of another process, of its `cell_sources()`."""
    for name, source in sources.items():
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
