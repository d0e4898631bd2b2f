"""Compare the runs of a student's script: its curve, its bytes, and how it resumes.

The script's own run on one rank is the twin. All runs are in float64.
"""

import math
import re

from helpers.check.ranks import HANG_HINT
from helpers.check.submission.job import Result
from helpers.check.verdict import NotRight

TOLERANCE = 1e-9  # of a loss in float64; ranks add in another order
SMALLER = 0.75  # of the bytes on 1 rank; a half is right, and whole tensors do not divide evenly
KINDS = ("parameters", "gradients", "optimizer")
SHARDED = {0: (), 1: ("optimizer",), 2: ("optimizer", "gradients"), 3: (*KINDS[::-1],)}
CLEAR = 0.5  # nats learned; with less, the noise of batches hides which of two losses is nearer
TAIL = 12  # lines of an error to show


class NotWritten(Exception):
    """The script raises NotImplementedError."""


def judge_end(found: Result, steps: range):
    """The script ended well, and printed each of these steps once."""
    shared = {path: ranks for path, ranks in sorted(found.writers.items()) if len(ranks) > 1}
    if shared:
        path, ranks = next(iter(shared.items()))
        raise NotRight(
            f"ranks {listed(sorted(ranks))} all wrote {path}, in the folder of checkpoints",
            "Ranks that write one file overwrite each other. Which rank writes, or which name does "
            "each rank's own file have?",
        )
    if found.hung:
        raise NotRight(
            f"the ranks printed nothing more, and did not end\n{stacks(found)}", HANG_HINT
        )
    if re.search(r"NotImplementedError$", found.errors, re.MULTILINE):  # PyTorch's has a text
        raise NotWritten
    if found.code:
        raise NotRight(
            f"it failed (exit code {found.code})\n{tail(found)}",
            "Run it yourself: torchrun --standalone --nproc-per-node 2 SCRIPT --stage …",
        )
    judge_steps(found, steps)


def judge_steps(found: Result, steps: range):
    if not found.losses:
        raise NotRight(
            "it printed no loss",
            'Rank 0 prints a line of JSON for each step: {"step": 0, "loss": 5.57}.',
        )
    if found.twice is not None:
        raise NotRight(
            f"it printed step {found.twice} twice",
            "One rank prints the losses, after the loss was summed over all ranks.",
        )
    missing = [step for step in steps if step not in found.losses]
    if missing or len(found.losses) != len(steps):
        raise NotRight(
            f"it printed the steps {span(found.losses)}, not {span(steps)}",
            "Steps count from 0 to --steps - 1, whatever --save-every and the checkpoint are.",
        )


def judge_reads_data(one: Result, other: Result):
    """Two texts give two curves."""
    if all(one.losses[step] == loss for step, loss in other.losses.items()):
        raise NotRight(
            "two different files as --data give exactly the same losses",
            "The losses are not those of a training on the file. Where do they come from?",
        )


def judge_learns(one: Result):
    """The last losses are all below the first ones; one of them may be high, as batches differ."""
    losses = [one.losses[step] for step in sorted(one.losses)]
    third = len(losses) // 3
    first, last = min(losses[:third]), max(losses[-third:])
    last = last if all(map(math.isfinite, losses)) else math.nan
    if not last < first:
        raise NotRight(
            f"the losses do not fall: {first:.4f} in the first {third} steps, {last:.4f} in the "
            f"last {third}",
            "Does each step update the parameters, by the gradients of its own batch alone? Is the "
            "learning rate large enough?",
        )


def judge_curve(found: Result, twin: Result, ranks: int):
    """The losses on ranks are the losses on one rank."""
    step = first_apart(found, twin)
    if step is None:
        return
    finding = (
        f"step {step}: the loss is {found.losses[step]:.9f} on {ranks} ranks, "
        f"and {twin.losses[step]:.9f} on one"
    )
    if step == 0:
        raise NotRight(
            finding,
            "Before the first update, only data and first values count. Do the ranks begin with "
            "the same parameters? Do they divide the same global batch, and is the loss summed "
            "over all ranks' targets?",
        )
    raise NotRight(
        finding,
        "The losses agree until the update of the step before. Are the gradients averaged over the "
        "ranks, and does each target of the global batch have the same weight?",
    )


def judge_bytes(found: Result, one: Result, stage: int, ranks: int):
    """Each rank holds less of what its stage shards."""
    if set(found.held) != set(range(ranks)) or not all(has_kinds(h) for h in found.held.values()):
        raise NotRight(
            f"the ranks printed the bytes {found.held}",
            'At the end, each rank prints {"rank": 0, "bytes": {"parameters": …, "gradients": …, '
            '"optimizer": …}}: what it holds after its last update.',
        )
    for kind in SHARDED[stage]:
        whole = one.held[0][kind]
        most = max(held[kind] for held in found.held.values())
        if whole <= 0 or most > SMALLER * whole:
            raise NotRight(
                f"a rank of {ranks} holds {most:,} bytes of {kind}; one process holds {whole:,}",
                f"Stage {stage} divides {', '.join(SHARDED[stage])} over the ranks. Does the "
                "script use --stage, and do you count only what this rank has?",
            )


def has_kinds(held: dict) -> bool:
    return all(kind in held for kind in KINDS)


def judge_killed(found: Result, twin: Result, first: int, ranks: int):
    """A run that was killed on purpose: what it printed until then is right."""
    if found.hung:
        raise NotRight(
            f"one rank was killed, and the others neither went on nor ended\n{tail(found)}",
            "The launcher ends the other ranks. Does the script start processes of its own?",
        )
    judge_first(found, first)
    judge_resumed(found, twin, ranks)


def judge_died(found: Result):
    """A process that wrote a checkpoint was killed, and the run ended with an error."""
    if not found.code:
        raise NotRight(
            "a process was killed while it wrote a checkpoint, and yet the script ended well",
            "A run without its checkpoint must fail, or nobody notices. Who writes it?",
        )


def judge_first(found: Result, first: int):
    """A run that continues begins where the last whole checkpoint ended."""
    if found.first is None:
        raise NotRight(f"it does not start again\n{tail(found)}", "Read its error above.")
    if found.first != first:
        words = "from the start" if found.first == 0 else f"at step {found.first}"
        raise NotRight(
            f"the last whole checkpoint is of {first} steps; the next run begins {words}",
            "A run continues with the step after the last checkpoint in --folder that is whole, "
            "and with nothing later.",
        )


def judge_resumed(found: Result, twin: Result, ranks: int):
    """After a restart the losses are those of a run without a stop."""
    step = first_apart(found, twin)
    if step is None:
        return
    finding = (
        f"after the restart, the loss of step {step} is {found.losses[step]:.9f}; "
        f"without a stop it is {twin.losses[step]:.9f}"
    )
    if found.first == 0:
        judge_curve(found, twin, ranks)
    if step > found.first:
        raise NotRight(
            finding,
            "The first step agrees, so parameters and data are right, but its update is not. What "
            "else does an update use: the optimizer's state, its count of steps, the learning "
            "rate?",
        )
    start, before = twin.losses[0], twin.losses[step]
    if start - before < CLEAR:
        raise NotRight(
            finding,
            "Are the saved parameters loaded, and where? If they are, and the data start again, "
            "the batch is another: it must depend on the number of the step alone.",
        )
    if abs(found.losses[step] - start) < abs(found.losses[step] - before):
        raise NotRight(
            finding, "That is a loss of untrained parameters. Are the saved ones loaded, and where?"
        )
    raise NotRight(
        finding,
        "The parameters are trained, but the batch is another. Which global batch does the first "
        "step after a restart use? It must depend on the number of the step alone.",
    )


def judge_saved(found: Result, steps: list[int], sizes: list[int] | None = None):
    """The checkpoints that the run reports, and, with the sizes of the files, that are there."""
    if found.saved != steps:
        raise NotRight(
            f"it reported the checkpoints {found.saved}, not {steps}",
            'When a checkpoint is whole, one rank prints {"saved": N}: N steps are in it. There is '
            "one after each --save-every steps, and one after the last step.",
        )
    if sizes == []:
        raise NotRight(
            "it reported a checkpoint, but the folder is empty",
            "Checkpoints are files in --folder.",
        )


def judge_torn(found: Result, twin: Result, first: int, ranks: int):
    """The run after a save that broke off."""
    try:
        judge_first(found, first)
        judge_resumed(found, twin, ranks)
        judge_end(found, range(first, max(twin.losses) + 1))
    except NotRight as wrong:
        raise NotRight(
            f"the run before was killed while it wrote a checkpoint. {wrong.finding}",
            "A torn checkpoint must not count. Write it under another name, and rename it when it "
            f"is whole: a rename happens, or does not. {wrong.hint}".rstrip(),
        ) from None


def first_apart(found: Result, twin: Result) -> int | None:
    """The first step whose loss differs from the twin's. `judge_steps` finds steps of one alone."""
    for step in sorted(found.losses.keys() & twin.losses.keys()):
        loss, right = found.losses[step], twin.losses[step]
        if not math.isclose(loss, right, rel_tol=0, abs_tol=TOLERANCE):
            return step
    return None


def tail(found: Result) -> str:
    """The end of the error stream, without torchrun's own report."""
    text = found.errors.split("torch/distributed/elastic/multiprocessing/api.py")[0]
    lines = [line for line in text.splitlines() if line.strip() and "socket.cpp" not in line]
    return "\n".join(lines[-TAIL:])


def stacks(found: Result) -> str:
    """Where each rank waits: the innermost calls, down to the script's own. Else the last lines."""
    _, *each = found.errors.split("Stack (most recent call first):\n")
    inner = [stack.split('  File "<frozen runpy>"')[0].splitlines()[:TAIL] for stack in each]
    return "\n\n".join("\n".join(lines) for lines in inner) or tail(found)


def span(steps) -> str:
    steps = sorted(steps)
    if len(steps) > 1 and steps == list(range(steps[0], steps[-1] + 1)):
        return f"{steps[0]} to {steps[-1]}"
    return listed(steps)


def listed(numbers) -> str:
    return ", ".join(map(str, numbers)) or "none"
