"""Read where a rank is from faulthandler's output, written on request or in a crash."""

import linecache
import re
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

HERE = str(Path(__file__).parent)
BEGIN = str(
    Path(__file__).parent / "local" / "rank" / "program.py"
)  # frames below start the process


@dataclass
class Frame:
    file: str
    line: int
    name: str

    @property
    def ours(self) -> bool:
        return self.file.startswith(HERE) or self.file.startswith("<frozen")

    @property
    def library(self) -> bool:
        return self.ours or "site-packages" in self.file or self.file.startswith(sys.base_prefix)


STACK_LINE = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def frames(dump: str) -> list[Frame]:
    """Return the frames of faulthandler's latest output, the innermost first."""
    last = re.split(r"^(?:Stack|Current thread|Fatal Python error).*$", dump, flags=re.M)[-1]
    found = (STACK_LINE.match(line) for line in last.splitlines())
    all_frames = [Frame(m[1], int(m[2]), m[3]) for m in found if m]
    inside = takewhile(lambda f: f.file != BEGIN, all_frames)
    return [f for f in inside if not f.ours]


def collective(stack: list[Frame]) -> str | None:
    """Return the name of the torch.distributed call that the rank is in, or None."""
    inside = [f.name for f in stack if "torch/distributed/distributed_c10d" in f.file]
    return next((name for name in reversed(inside) if name != "wrapper"), None)


def doing(dump: str) -> str:
    """Describe a rank's activity in one line, from its stack."""
    stack = frames(dump)
    if not stack:
        return "not answering"
    place = next((f for f in stack if not f.library), stack[0])
    where = f"line {place.line} of {cell_name(place.file)}, in {place.name}"
    source = linecache.getline(place.file, place.line).strip()
    call = collective(stack)
    return (
        f"{f'waiting in {call}' if call else 'running'}, {where}{f': {source}' if source else ''}"
    )


def format_stack(dump: str) -> str:
    lines = []
    for f in reversed(frames(dump)):
        lines.append(f'  File "{f.file}", line {f.line}, in {f.name}')
        if source := linecache.getline(f.file, f.line).strip():
            lines.append(f"    {source}")
    return with_cell_names("\n".join(lines))


def cell_name(file: str) -> str:
    """Return `Cell In[3]` for the code of a cell, else the file name."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    name = getattr(shell.compile, "format_code_name", None) if shell else None  # since IPython 8
    label = name(file) if name else None  # Colab has IPython 7
    return f"{label[0]} {label[1]}" if label else file


def with_cell_names(text: str) -> str:
    """Replace the temporary file names of cells by `Cell In[3]`: those files do not exist."""

    def replace(match):
        name = cell_name(match[1])
        return match[0] if name == match[1] else name

    return re.sub(r'File "([^"]+)"', replace, text)
