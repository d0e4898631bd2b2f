"""Run a script on one rank, as the check of the project asks for it.

    torchrun … rank.py ORDERS SCRIPT [ARGUMENT]…

ORDERS is a JSON object:
    notes          a folder; each rank writes lines of JSON there
    watch          a folder; the rank notes each file that it opens for writing or renames there
    kill_at_step   after its line {"step": this, …}, the rank kills itself by SIGKILL, or null
    file_bytes     the kernel kills the rank in the write that makes a file longer, or null

Nothing here imports `helpers`: the script alone decides what is imported.
"""

import faulthandler
import json
import os
import resource
import runpy
import signal
import sys
from pathlib import Path

WRITING = os.O_WRONLY | os.O_RDWR


class Notes:
    """This rank's lines of JSON for the check."""

    def __init__(self, folder: str, watch: str):
        rank = os.environ.get("RANK", "0")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.file = os.open(Path(folder, f"notes-{rank}"), flags, 0o600)
        self.watch = os.path.realpath(watch)
        self.add(pid=os.getpid())

    def add(self, **fact):
        os.write(self.file, json.dumps(fact).encode() + b"\n")

    def wrote(self, path):
        """Note a path, if it is in the folder to watch."""
        if isinstance(path, str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(path))
            if path.startswith(self.watch + os.sep):
                self.add(wrote=os.path.relpath(path, self.watch))

    def hook(self, event: str, arguments: tuple):
        """An audit hook: Python calls it before it opens or renames a file."""
        if event == "open" and arguments[2] & WRITING:
            self.wrote(arguments[0])
        elif event == "os.rename":
            self.wrote(arguments[1])


class Output:
    """Standard output. A certain line is the last thing that this process does."""

    def __init__(self, stream, kill_at_step: int):
        self.stream, self.step, self.line = stream, kill_at_step, ""

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        *lines, self.line = (self.line + text).split("\n")
        count = self.stream.write(text)
        if any(step_of(line) == self.step for line in lines):
            self.stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return count


def step_of(line: str):
    try:
        return json.loads(line).get("step")
    except (ValueError, AttributeError):
        return None


def note_saves(notes: Notes):
    """Note `torch.save(…, path)` too: it opens the file outside of Python."""
    import torch

    plain = torch.save

    def save(obj, f, *args, **kwargs):
        notes.wrote(f)
        return plain(obj, f, *args, **kwargs)

    torch.save = save


def main(orders: str, script: str, *arguments: str):
    orders = json.loads(orders)
    # The check asks where a silent rank is. Its stack ends with "<frozen runpy>", below the script.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    notes = Notes(orders["notes"], orders["watch"])
    sys.addaudithook(notes.hook)
    note_saves(notes)
    if orders["kill_at_step"] is not None:
        sys.stdout = Output(sys.stdout, orders["kill_at_step"])
    if orders["file_bytes"] is not None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (orders["file_bytes"], hard))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python would raise OSError instead
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
