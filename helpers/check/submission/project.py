"""The check of the course's project: a script that trains on ranks, saves and resumes."""

import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from helpers.check.submission import judge
from helpers.check.submission.job import PATIENCE, by_torchrun, run
from helpers.check.verdict import NotRight, Verdict
from helpers.runtime.private import private_folder

EXERCISE = "project"
RANKS, STEPS, EVERY, KILLED = 2, 12, 4, 6  # a rank is killed after step 6; 4 steps are saved
FEW = 3  # steps of a run that shows bytes, or another text
WORDS = ("rank", "shard", "bucket", "loss", "step", "batch", "layer", "token", "mesh", "stage")
SMALLEST = 32_768  # bytes: a smaller file could be a log


def project(script: str | Path | None, *, start: Callable = by_torchrun, patience=PATIENCE):
    """Check a script that trains on ranks. It runs nine times: about a minute on two cores.

    The script must have the flags --stage, --steps, --save-every, --folder, --data and --dtype, and
    print lines of JSON, as the project's notebook describes. It runs on the CPU in float64.

    Args:
        script: its path; None if there is none yet.
        start: starts the ranks; by default `torchrun`.
        patience: seconds without a sign of life after which a run counts as hung.

    Returns:
        A Verdict: the first thing that is wrong, in the order curve, memory, resuming.
    """
    if script is None:
        return Verdict(EXERCISE, "not written yet")
    script = Path(script).resolve()
    if not script.is_file():
        return Verdict(EXERCISE, "wrong", f"there is no file {script.name}", "Check the path.")
    folder = Path(tempfile.mkdtemp(prefix="project-", dir=private_folder()))
    where = Where(script, folder, start, patience)
    try:
        judge_all(where)
    except judge.NotWritten:
        return Verdict(EXERCISE, "not written yet")
    except NotRight as wrong:
        return Verdict(EXERCISE, "wrong", f"{where.now}: {wrong.finding}", wrong.hint)
    return Verdict(EXERCISE, "passed")


class Where:
    """The script, the files of this check, and the run that is judged now."""

    def __init__(self, script: Path, folder: Path, start: Callable, patience: float):
        self.run = partial(run, script, start=start, patience=patience)
        self.folder, self.now, self.number = folder, "", 0
        self.text, self.other = (self.write(seed) for seed in (1, 2))

    def write(self, seed: int) -> Path:
        """A text that a small model can begin to learn."""
        file = self.folder / f"text-{seed}"
        file.write_text(" ".join(random.Random(seed).choices(WORDS, k=8000)))
        return file

    def __call__(self, what: str, ranks: int, stage: int, *, steps=STEPS, keep=None, **more):
        """Run the script once. `keep` names a folder of checkpoints that several runs share."""
        self.number += 1
        stop = {name: more.pop(name) for name in ("kill_at_step", "file_bytes") if name in more}
        self.now = f"{what} ({ranks} rank{'s' * (ranks > 1)}, --stage {stage})"
        print(f"run {self.number} of 9: {self.now}", flush=True)
        folder = self.folder / (keep or f"run-{self.number}")
        folder.mkdir(exist_ok=True)
        options = {"stage": stage, "steps": steps, "save_every": EVERY, "folder": folder}
        return self.run(ranks, options | {"data": self.text, "dtype": "float64"} | more, **stop)


def judge_all(where: Where):
    """Run the script, and raise NotRight for the first thing that is wrong."""
    one = where("one process", 1, 0)
    judge.judge_end(one, range(STEPS))
    judge.judge_bytes(one, one, 0, 1)
    judge.judge_learns(one)
    other = where("another text", 1, 0, steps=FEW, data=where.other)
    judge.judge_end(other, range(FEW))
    judge.judge_reads_data(one, other)
    judge_stages(where, one)
    judge_resuming(where, one)


def judge_stages(where: Where, one):
    """Run all stages on ranks, and compare them with one process."""
    for stage in range(4):
        steps = STEPS if stage == 0 else FEW
        found = where("curve and memory", RANKS, stage, steps=steps)
        judge.judge_end(found, range(steps))
        judge.judge_curve(found, one, RANKS)
        judge.judge_bytes(found, one, stage, RANKS)
    judge.judge_saved(found, [FEW])  # the last step is no multiple of --save-every


def judge_resuming(where: Where, one):
    """Kill the script in a step, then in a save; then let it end."""
    again = partial(where, ranks=RANKS, stage=3, keep="kept")
    found = again("a rank is killed in a step", kill_at_step=KILLED)
    judge.judge_killed(found, one, 0, RANKS)
    sizes = [f.stat().st_size for f in (where.folder / "kept").rglob("*") if f.is_file()]
    judge.judge_saved(found, [EVERY], sizes)
    largest = max(SMALLEST, max(sizes) // 2)
    found = again("restarted, and killed in a save", file_bytes=largest)
    judge.judge_killed(found, one, EVERY, RANKS)
    judge.judge_died(found)
    last = max([EVERY, *found.saved])
    found = again("restarted again")
    judge.judge_torn(found, one, last, RANKS)
    judge.judge_saved(found, list(range(last + EVERY, STEPS + 1, EVERY)))
