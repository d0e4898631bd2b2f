"""Describe a wrong call of torch.distributed in one sentence that names the rank and the line.

The student's own lines of the traceback follow, and PyTorch's error as its last line.
"""

import os
import re
from pathlib import Path

from helpers.runtime.stacks import IN_TORCH, cell_name, library, ours

DIFFER = "CallsDiffer"  # the rank that raised it has written the sentence
COURSE = str(Path(__file__).parent.parent)
START = "Traceback (most recent call last):\n"
FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)\n((?:    .*\n)*)', re.MULTILINE)
LONGEST = 1_200  # characters of PyTorch's own text, which debug=True makes long
PRINT = r"OpType=(\w+), TensorShape=(\[[\d, ]*\]), TensorDtypes=(\w+)"
SENTENCES = (  # PyTorch's words; ours, with the pattern's groups
    (rf"running collective.*?{PRINT}.*?but Rank (\d+) is.*?{PRINT}",
     "calls {0} of {2}{1}, rank {3} calls {4} of {6}{5}{at}"),
    (r"Global rank (-?\d+) is not part of group",
     "names rank {0} in {call}{at}, and rank {0} is not a member of that group"),
    (r"(?:invalid root rank:|there is no rank) (-?\d+)",
     "names rank {0} in {call}{at}, and there is no rank {0}"),
    (r"rank should not be the same as the rank of the current process",
     "names itself in {call}{at}: no rank can send to itself, or receive from itself"),
    (r"No backend type associated with device type (\w+)",
     "gives a tensor on {0} to {call}{at}: make it with device=worker.device"),
    (r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver",
     "asks for a GPU{at}, and it has none: make tensors with device=worker.device"),
    (r"list at index \d+ \(expected length (\d+), got (\d+)\)",
     "gives {1} tensors to {call}{at}, and needs {0}: one for each rank"),
    (r"list size (\d+)(?: does not match world size |\. .* should be )(\d+)",
     "gives {0} tensors to {call}{at}, and needs {1}: one for each rank"),
    (r"tensor size at index \d+ \(expected \((.*?)\), got \((.*?)\)\)",
     "sends shape ({0}) in {call}{at}, and has room for shape ({1}) from each rank"),
    (r"outputShape\[0\] \* worldSize == inputShape\[0\] \((\d+) vs\. (\d+)\)",
     "gives {1} rows to {call}{at}, and the outputs of all ranks have {0}"),
    (r"``(\w+)`` must be specified on (\w+) rank",
     "is the {1} of {call}{at}, and gives no {0}"),
    (r"``(\w+)`` must NOT be specified on non-(\w+) ranks",
     "gives a {0} to {call}{at}, and only the {1} may: give None on the other ranks"),
    (r"Expected parameter `\w+` of type torch\.Tensor\s+but got <class '([\w.]+)'>",
     "gives a {0} to {call}{at}: make a tensor of it"),
    (r"Invoked with: <\S+Options object at \S+, ['\"](\w+)",
     "gives op={0!r} to {call}{at}: write op=dist.ReduceOp.SUM, for example"),
    (r"initialize the default process group twice",
     "calls {call}{at}, and the process group is there already: leave this line out"),
)  # fmt: skip


def sentence(rank: int, kind: str, message: str, trace: str) -> tuple[str, str]:
    """Return the sentence, and the student's part of the traceback.

    For an error that is none of these, return "" and the traceback without lines of this folder.

    Args:
        kind, message, trace: of the exception that the rank raised, as text.
    """
    last = trace.rpartition(START)[2]
    frames = [(*found.groups(), found[0]) for found in FRAME.finditer(last)]
    own = [n for n, (file, *_) in enumerate(frames) if not (library(file) or ours(file))]
    if not own:
        return "", trace
    inside, shown = frames[own[-1] + 1 :], [frames[n] for n in own]
    calls = (name for file, _, name, *_ in inside if IN_TORCH.search(file) and name != "wrapper")
    call = next(calls, "")
    file, line, *_ = ([one for one in shown if not one[0].startswith(COURSE)] or shown)[-1]
    at = f" at line {line} of {os.path.basename(cell_name(file))}"
    lines = START + "".join(text for *_, text in shown)
    if kind == DIFFER:
        return message + at, lines
    error = last[last.rindex(frames[-1][-1]) + len(frames[-1][-1]) :].split("\n")[0][:LONGEST]
    for words, said in SENTENCES:
        if (call or "{call}" not in said) and (found := re.search(words, message)):
            return f"rank {rank} {said.format(*found.groups(), call=call, at=at)}", lines + error
    for found in FRAME.finditer(trace):
        trace = trace.replace(found[0], "") if ours(found[1]) else trace
    return "", trace
