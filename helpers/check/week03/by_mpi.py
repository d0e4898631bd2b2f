"""Exercise of week 3: data parallel with MPI alone, against one process."""

import json
import traceback

import torch

from helpers.check.oracle import HANG_HINT, NotRight, own_frames
from helpers.check.verdict import Verdict
from helpers.check.week03.mpi_rank import CASES, RANKS, rows_of
from helpers.check.week03.mpi_twin import Twin, judge
from helpers.check.week03.mpiexec import Folder, NoMPI, run_on_mpi_ranks
from helpers.data.digits import digits, tensors
from helpers.runtime.stacks import doing, format_stack, with_cell_names

EXERCISE = "train_by_mpi"
QUIET = 15.0  # seconds that one training may take; it needs a fraction of one
CAUSED_BY_OTHERS = ("MPI_ERR", "MPI_Abort")


def train_by_mpi(fn) -> Verdict:
    """Check `fn(world, model, batches, loss_sum, rate) -> losses` under `mpiexec`.

    The function trains a classifier of digits on 1, 2 and 3 ranks and a small GPT on 2 and 3. The
    ranks begin with different parameters. Losses and parameters are compared with one process.
    """
    if only_raises(fn):
        return Verdict(EXERCISE, "not written yet")  # without a start of mpiexec
    pixels = digits_with_labels()
    try:
        folder = run_on_mpi_ranks(fn, RANKS, {"digits": pixels.numpy().tobytes()}, QUIET)
    except NoMPI as error:
        return Verdict(EXERCISE, "wrong", str(error), "Your function was not run.")
    except Exception as error:  # cloudpickle's, about something in the function
        return Verdict(EXERCISE, "wrong", f"the function cannot travel to the ranks: {error}")
    for number, (work, ranks) in enumerate(CASES):
        where = f"{work}, {ranks} rank{'s' * (ranks > 1)}"
        reports = [folder.report(number, rank) for rank in range(ranks)]
        found = [json.loads(report) if report else None for report in reports]
        try:
            if (broken := what_broke(found, folder)) is not None:
                return broken if isinstance(broken, Verdict) else wrong(where, broken)
            judge(found, Twin(work, pixels))
        except NotRight as mistake:
            return wrong(where, mistake)
    return Verdict(EXERCISE, "passed")


def only_raises(fn) -> bool:
    """The stub: its code names nothing but the error that it raises."""
    code = getattr(fn, "__code__", None)
    return code is not None and code.co_names == ("NotImplementedError",)


def wrong(where: str, mistake: NotRight) -> Verdict:
    return Verdict(EXERCISE, "wrong", f"{where}: {mistake.finding}", mistake.hint)


def digits_with_labels() -> torch.Tensor:
    """(N, 65) float64: as many digits as the steps need."""
    images, labels = tensors(digits().select(range(sum(map(len, rows_of("digits"))))))
    return torch.cat([images.flatten(1), labels[:, None]], 1).double().contiguous()


# ------------------------------------------------------------------- ranks that failed or hung


def what_broke(found: list[dict | None], folder: Folder) -> NotRight | Verdict | None:
    """An error, a hang, or an end without a report; None if every rank came through."""
    errors = {rank: one for rank, one in enumerate(found) if one and "error" in one}
    if any(one["not written"] for one in errors.values()):
        return Verdict(EXERCISE, "not written yet")
    for rank, one in sorted(errors.items(), key=lambda item: caused(item[1]["error"])):
        frames = [traceback.FrameSummary(*frame) for frame in one["frames"]]
        lines = own_frames(with_cell_names("".join(traceback.format_list(frames))))
        finding = f"rank {rank} raised {one['error']}\n{lines}".rstrip()
        return NotRight(finding, hint_error(one["error"]))
    if None not in found:
        return None
    if stacks := folder.stacks():
        lines = [f"no progress for {QUIET:g} s: a hang"]
        lines += [f"rank {r} was {doing(s)}\n{format_stack(s)}" for r, s in stacks.items()]
        done = [rank for rank, one in enumerate(found) if one]
        lines += [f"rank {rank} had returned" for rank in done]
        return NotRight(own_frames("\n".join(lines)), HANG_HINT)
    missing = [rank for rank, one in enumerate(found) if one is None]
    said = folder.printed().strip().splitlines()[-8:]
    return NotRight("\n".join([f"rank {missing[0]} ended without a report", *said]))


def caused(error: str) -> bool:
    """An error that another rank's end has caused is shown last."""
    return any(word in error for word in CAUSED_BY_OTHERS)


def hint_error(error: str) -> str:
    if "requires grad" in error or "Can't call numpy" in error:
        return "numpy() needs a tensor without a graph: parameter.detach().numpy() shares memory."
    if "MPI_ERR_TRUNCATE" in error or "truncated" in error:
        return "The ranks passed buffers of different sizes. Is each buffer as large on every rank?"
    if "leaf Variable" in error or "in-place operation" in error:
        return "Write into parameters inside `with torch.no_grad():`."
    if "NoneType" in error:
        return "Is there a gradient before the first backward?"
    return ""
