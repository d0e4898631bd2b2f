"""What one MPI rank does for the check of `train_by_mpi`, and the training that it makes.

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

from helpers.data.batch import Batch, random_batch
from helpers.models.gpt import GPTConfig, build, loss_sum
from helpers.runtime.private import is_own

RANKS = (1, 2, 3)  # of each case
RATE = 0.25
SIZES = (5, 7, 2, 5)  # of the global batches: unequal shards on 2 and 3 ranks, and an empty one
CONFIG = GPTConfig(vocab=11, context=6, width=8, layers=1, heads=2)


def batches() -> list[torch.Tensor]:
    """The rows of the global batch of each step."""
    order = torch.randperm(sum(SIZES), generator=torch.Generator().manual_seed(3))
    return list(order.split(SIZES))


def model_of(seed: int) -> nn.Module:
    return build(CONFIG, seed=seed, dtype=torch.float64)


def loss_of_rows(model, rows):
    """The summed loss, and over how many targets."""
    text = random_batch(1, sum(SIZES), CONFIG.context, CONFIG.vocab, ignored=0.3)
    batch = Batch(tokens=text.tokens[rows], targets=text.targets[rows])
    loss, _ = loss_sum(model(batch.tokens), batch.targets)
    return loss, batch.counted()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def train(fn, world) -> dict:
    """Run the student's function once, on this rank; note rows and parameters at each call."""
    model, calls = model_of(world.Get_rank()), []

    def noted(model, rows):
        rows = torch.as_tensor(rows)
        calls.append({"rows": rows.tolist(), "state": flat(model).tolist()})
        return loss_of_rows(model, rows)

    losses = fn(world, model, batches(), noted, RATE)
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
    model_of(0)  # the first model makes PyTorch import for seconds: before a case's time begins
    fn = pickle.loads((folder / "function").read_bytes())  # from the notebook's own private folder
    with open(folder / f"stack-{everyone.rank}", "w") as stack:
        for ranks in RANKS:
            # A function that says COMM_WORLD gets the ranks of this case, too.
            world = MPI.COMM_WORLD = everyone.Split(int(everyone.rank < ranks), everyone.rank)
            if everyone.rank < ranks:
                faulthandler.dump_traceback_later(seconds, file=stack)
                try:
                    found = train(fn, world)
                except Exception as error:
                    found = failure(error)
                faulthandler.cancel_dump_traceback_later()
                write(folder / f"report-{ranks}-{everyone.rank}", json.dumps(found))
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
