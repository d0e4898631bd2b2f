"""Execute the course's notebooks.

    notebooks.py course            run each in a fresh kernel, write it to build/executed/
    notebooks.py execute [--all]   run in place those whose code changed since they were last run,
                                   and strip what should not be committed

Both accept words, and then process only notebooks whose names contain one: `notebooks.py course
week01`.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import sys
import sysconfig
import time
from pathlib import Path

import nbformat
from course import find
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
CELL_SECONDS = 240  # the tests' limit for a cell, too
PNG_BYTES = 60_000
COLOUR = re.compile(r"\x1b\[[\d;]*m")
WIDGET = "application/vnd.jupyter.widget-view+json"


class ThisPython(KernelSpecManager):
    """Run every kernel named python3 on this interpreter, whatever this machine calls python3."""

    def get_kernel_spec(self, kernel_name):
        return KernelSpec(**get_kernel_dict())


class KernelManager(AsyncKernelManager):
    def _kernel_spec_manager_default(self):
        return ThisPython(parent=self)


class Progress:
    """Print one line per notebook: rewritten on a terminal, else from time to time."""

    def __init__(self, name, cells):
        self.name, self.cells, self.begun, self.done = name, cells, 0, 0
        self.start = self.said = time.monotonic()
        self.say()

    def say(self, last=False):
        now, terminal = time.monotonic(), sys.stdout.isatty()
        if terminal or last or self.done == 0 or now - self.said > 10:
            self.said = now
            line = f"{self.name}  cell {self.done}/{self.cells}  {now - self.start:.0f} s"
            print(f"\r{line}" if terminal else line, end="" if terminal and not last else "\n")
            sys.stdout.flush()

    def cell_begins(self, cell, **_):
        self.begun += cell.cell_type == "code" and bool(cell.source.strip())

    def cell_done(self, **_):
        self.done += 1
        self.say()


def code_cells(nb):
    """Return the cells with code to run, in order: the n-th is In [n] when executed."""
    return [c for c in nb.cells if c.cell_type == "code" and c.source.strip()]


def digest(nb):
    """Return a name for the code of a notebook: outputs under this name belong to this code."""
    sources = json.dumps([cell.source for cell in code_cells(nb)])
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def run(nb, path):
    """Execute `nb` in a fresh kernel, in the folder of `path`; exit naming the cell that fails."""
    progress = Progress(path.name, len(code_cells(nb)))
    client = NotebookClient(
        nb,
        config=Config(
            KernelManager={"transport_encryption": "auto"}
        ),  # if the system can; else it warns
        kernel_manager_class=KernelManager,
        kernel_name="python3",
        timeout=CELL_SECONDS,
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
        on_cell_start=progress.cell_begins,
        on_cell_executed=progress.cell_done,
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        progress.say(last=True)
        message = f"\n{path.name}, In [{progress.begun}], failed:\n{error}"
        sys.exit(message if sys.stderr.isatty() else COLOUR.sub("", message))
    progress.say(last=True)


def neutral(text, root):
    """Return `text` without this machine's traces: kernel files, absolute paths, addresses."""
    # A match begins where a word begins: a picture in HTML is one word of 70,000 characters.
    text = re.sub(r"(?<![^\s'\"()])[^\s'\"()]*/ipykernel_\d+/\d+\.py", "<cell>", text)
    text = re.sub(r"(?<= at 0x)[0-9a-f]+(?=>)", "…", text)
    home = Path.home()
    names = {root: ".", Path(sys.prefix): ".venv", home: "~"}
    names[Path(sysconfig.get_paths()["stdlib"])] = "lib/python"
    short = {str(path): name for path, name in names.items() if len(path.parts) > 1}
    for path, name in names.items():  # IPython itself writes paths below the home as ~/…
        if home in path.parents and len(home.parts) > 1:
            short[f"~/{path.relative_to(home)}"] = name
    for path in sorted(short, key=len, reverse=True):
        text = re.sub(re.escape(path) + r"(?![\w-])", short[path], text)
    return text


def strip(nb, root):
    """Remove this machine's traces from `nb`; exit if a picture is too large.

    The metadata of outputs stay: the size and the alternative text of pictures.
    """
    for number, cell in enumerate(code_cells(nb), 1):
        for key in ("execution", "ExecuteTime"):
            cell.metadata.pop(key, None)
        for output in cell.outputs:
            for key in ("text", "evalue"):
                if key in output:
                    output[key] = neutral(output[key], root)
            if "traceback" in output:
                output.traceback = [neutral(line, root) for line in output.traceback]
            for kind, value in output.get("data", {}).items():
                if kind.startswith("text/") or kind == "image/svg+xml":
                    output.data[kind] = neutral(value, root)
            picture = output.get("metadata", {}).get("image/png", {})
            if "alt" in picture:
                picture["alt"] = neutral(picture["alt"], root)
            size = len(base64.b64decode(output.get("data", {}).get("image/png", "")))
            if size > PNG_BYTES:
                limit = f"over {PNG_BYTES // 1000} kB; draw it smaller"
                sys.exit(f"In [{number}]: a picture of {size // 1000} kB, {limit}")
            # Without its state a widget is a broken picture, and its text form explains nothing.
            if WIDGET in output.get("data", {}):
                del output.data[WIDGET]
                if set(output.data) == {"text/plain"}:
                    output.data.clear()
        cell.outputs = [o for o in cell.outputs if "data" not in o or o.data]
    nb.metadata.pop("widgets", None)
    nb.metadata.kernelspec = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    nb.metadata.language_info = {"name": "python"}
    nb.metadata.executed = {"sources": digest(nb)}


def course(root, words):
    """Execute every notebook into build/executed/; the committed files stay as they are."""
    folder = root / "build" / "executed"
    folder.mkdir(parents=True, exist_ok=True)
    for path in find(root, words):
        nb = nbformat.read(path, as_version=4)
        run(nb, path)
        strip(nb, root)
        nbformat.write(nb, folder / path.name)


def execute(root, words, everything=False):
    """Execute in place, and strip, notebooks whose code has changed since their outputs."""
    for path in find(root, words):
        nb = nbformat.read(path, as_version=4)
        if not everything and nb.metadata.get("executed", {}).get("sources") == digest(nb):
            print(f"{path.name}  unchanged")
            continue
        run(nb, path)
        strip(nb, root)
        nbformat.write(nb, path)


def main(argv=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["course", "execute"])
    parser.add_argument("words", nargs="*", help="only notebooks whose name contains one of these")
    parser.add_argument("--all", action="store_true", help="execute: the unchanged ones, too")
    args = parser.parse_intermixed_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the outputs are those without a network
    os.environ.setdefault("HELPERS_EARLY", "no")  # nobody reads meanwhile
    # A cell's program (`!torchrun …`) must be the program beside this interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if args.command == "course":
        course(root, args.words)
    else:
        execute(root, args.words, everything=args.all)


if __name__ == "__main__":
    main()
