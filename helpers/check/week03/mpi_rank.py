"""What one MPI rank does for the check of `train_by_mpi`, and the two trainings that it makes.

    mpiexec -n 3 python -m helpers.check.week03.mpi_rank FOLDER SECONDS

SECONDS is how long a case may take before its ranks count as hung.

One start of Python serves all cases: a case of N ranks gets a communicator of the first N.
"""

import faulthandler
import json
import os
import pickle
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from helpers.data.batch import Batch, random_batch
from helpers.models.gpt import GPTConfig, build, loss_sum
from helpers.runtime.private import is_own

CASES = (("digits", 1), ("digits", 2), ("digits", 3), ("gpt", 2), ("gpt", 3))  # work, ranks
RANKS = 3
RATE = 0.25
CONFIG = GPTConfig(vocab=11, context=6, width=8, layers=1, heads=2)


def rows_of(work: str) -> list[torch.Tensor]:
    """The global batch of each step: unequal shards on 2 and 3 ranks, and an empty shard."""
    sizes = (11, 7, 2, 10) if work == "digits" else (5, 7, 5)
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(3))
    return list(order.split(sizes))


def model_of(work: str, seed: int) -> nn.Module:
    if work == "gpt":
        return build(CONFIG, seed=seed, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)).double()


def loss_of(work: str, pixels: torch.Tensor):
    """`loss_sum(model, rows)` of this work: the summed loss, and over how many targets.

    Args:
        pixels: (N, 65) float64, a digit's 64 pixels and its label.
    """
    if work == "gpt":
        text = random_batch(1, sum(map(len, rows_of(work))), 6, 11, ignored=0.3)

        def of_gpt(model, rows):
            batch = Batch(tokens=text.tokens[rows], targets=text.targets[rows])
            loss, _ = loss_sum(model(batch.tokens), batch.targets)
            return loss, batch.counted()

        return of_gpt

    def of_digits(model, rows):
        images, labels = pixels[rows, :64], pixels[rows, 64].long()
        return cross_entropy(model(images), labels, reduction="sum"), len(rows)

    return of_digits


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def train(fn, world, work: str, pixels: torch.Tensor) -> dict:
    """Run the student's function once, on this rank; note rows and parameters at each call."""
    model, summed, calls = model_of(work, world.Get_rank()), loss_of(work, pixels), []

    def noted(model, rows):
        rows = torch.as_tensor(rows)
        calls.append({"rows": rows.tolist(), "state": flat(model).tolist()})
        return summed(model, rows)

    losses = fn(world, model, [rows.clone() for rows in rows_of(work)], noted, RATE)
    return {"losses": plain(losses), "calls": calls, "state": flat(model).tolist()}


def plain(losses) -> list | str:
    """Numbers where the function returned numbers; else the name of what it returned."""
    if not isinstance(losses, list | tuple):
        return type(losses).__name__
    return [value if isinstance(value, float | int) else type(value).__name__ for value in losses]


def failure(error: BaseException) -> dict:
    """The exception's text and its frames; the notebook has the source lines."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "error": "".join(traceback.format_exception_only(error)).strip(),
        "not written": isinstance(error, NotImplementedError),
        "frames": [(frame.filename, frame.lineno, frame.name) for frame in frames],
    }


def main(folder: Path, seconds: float):
    if not is_own(folder.stat()):  # a pickle in it runs as code
        raise PermissionError(f"{folder} is not this user's alone: run the check again")
    signal.alarm(80)  # ends this rank if mpiexec cannot
    from mpi4py import MPI

    everyone = MPI.COMM_WORLD
    torch.set_num_threads(1)
    fn = pickle.loads((folder / "function").read_bytes())  # from the notebook's own private folder
    pixels = torch.frombuffer(bytearray((folder / "digits").read_bytes()), dtype=torch.float64)
    with open(folder / f"stack-{everyone.rank}", "w") as stack:
        for number, (work, ranks) in enumerate(CASES):
            # A function that says COMM_WORLD gets the ranks of this case, too.
            world = MPI.COMM_WORLD = everyone.Split(int(everyone.rank < ranks), everyone.rank)
            if everyone.rank < ranks:
                faulthandler.dump_traceback_later(seconds, file=stack)
                try:
                    found = train(fn, world, work, pixels.view(-1, 65))
                except Exception as error:
                    found = failure(error)
                faulthandler.cancel_dump_traceback_later()
                write(folder / f"report-{number}-{everyone.rank}", json.dumps(found))
                if "error" in found:
                    time.sleep(0.2)  # ranks with the same error write it, too
                    everyone.Abort(1)
            there = everyone.Ibarrier()
            while not there.Test():  # MPI's own waiting would take a core from those that work
                time.sleep(0.005)


def write(file: Path, text: str):
    """Whole, or not at all."""
    file.with_suffix(".part").write_text(text)
    os.replace(file.with_suffix(".part"), file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
