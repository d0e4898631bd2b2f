"""Exercise of week 7: read a rank's rows from a checkpoint that other ranks saved."""

import torch

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine
from helpers.check.verdict import Verdict

COLUMNS = 3
DTYPE = "torch.float32"
# Ranks that load, ranks that saved, rows. 10 rows on 4 ranks are 3, 3, 3 and 1; 9 rows on 4 ranks
# are 3, 3, 3 and 0; 8 rows on 5 ranks are 2, 2, 2, 2 and 0.
CASES = [(4, 2, 10), (4, 2, 9), (2, 5, 8)]


def reshard_rows(fn) -> Verdict:
    """Check `fn(worker, rows, saved_ranks, read) -> (own rows, columns)`."""
    cases = [(ranks, {"saved": saved, "rows": rows}) for ranks, saved, rows in CASES]
    return examine("reshard_rows", fn, cases, run_reshard, judge_reshard, patience=6)


def bounds(rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """The rows of a rank, as DTensor cuts: pieces of ceil(rows / ranks)."""
    size = -(-rows // ranks)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def numbers(row: int) -> list[float]:
    """A row of the whole tensor: it counts from 1."""
    first = row * COLUMNS + 1 + 1000 * hidden.shift(99)
    return [float(first + column) for column in range(COLUMNS)]


def run_reshard(worker, solve, saved, rows):
    whole = torch.tensor([numbers(row) for row in range(rows)])
    reads = []

    def read(saved_rank, start, stop):
        """Rows start:stop of the file of `saved_rank`, counted from the file's first row."""
        first, last = bounds(rows, saved_rank, saved)
        reads.append((saved_rank, start, stop))
        if not 0 <= saved_rank < saved or not 0 <= start <= stop <= last - first:
            raise IndexError(
                f"read({saved_rank}, {start}, {stop}): the file of rank {saved_rank} has rows 0 to "
                f"{last - first}"
            )
        return whole[first + start : first + stop].clone()

    try:
        answer = solve(worker, rows, saved, read)
    except IndexError as error:
        if not str(error).startswith("read("):
            raise
        return {"refused": str(error), "reads": reads}
    shape = tuple(answer.shape) if isinstance(answer, torch.Tensor) else None
    kind = type(answer).__name__
    return {
        "kind": kind,
        "shape": shape,
        "dtype": str(answer.dtype) if shape is not None else None,
        "rows": answer.tolist() if shape is not None else None,
        "reads": reads,
    }


def judge_reshard(runs, saved, rows):
    n = len(runs)
    where = f"{rows} rows, saved on {saved} ranks, loaded on {n}"
    for rank, run in enumerate(runs):
        start, stop = bounds(rows, rank, n)
        wanted = f"rank {rank} has rows {start}:{stop}"
        reads = ", ".join(f"read{one}" for one in run["reads"]) or "nothing"
        if "refused" in run:
            raise NotRight(f"{where}: rank {rank} called {run['refused']}", HINTS["file"])
        if run["shape"] is None:
            raise NotRight(f"{where}: rank {rank} returned {run['kind']}", HINTS["tensor"])
        right = [numbers(row) for row in range(start, stop)]
        finding = f"{where}: {wanted}; you returned shape {run['shape']}, and read {reads}"
        if run["shape"] != (stop - start, COLUMNS) or run["rows"] != right:
            raise NotRight(finding, hint_rows(run, rank, n, saved, rows))
        if run["dtype"] != DTYPE:
            raise NotRight(f"{finding}; their dtype is {run['dtype']}", HINTS["dtype"])
        if sum(last - first for _, first, last in run["reads"]) > stop - start:
            raise NotRight(finding, HINTS["too much"])


HINTS = {
    "file": (
        "`read` counts from the first row of that file. Where does the file begin in the whole "
        "tensor? Subtract it, and stay within the file."
    ),
    "tensor": "Return a tensor: this rank's rows, also if it has none.",
    "dtype": "The rows are right, but their dtype is not. Which dtype has what `read` returns?",
    "too much": (
        "The rows are right, but you read more than your own rows. A checkpoint is larger than a "
        "rank's memory: which rows of each file are yours?"
    ),
    "whole": "That is the whole tensor. Which rows are this rank's?",
    "empty": (
        "A rank without rows returns a tensor of no rows, with all columns: read(0, 0, 0) has the "
        "right shape."
    ),
    "even": (
        "DTensor cuts in pieces of ceil(rows / ranks), and the last pieces are smaller or empty. "
        "You spread the rest over the first ranks."
    ),
    "old": (
        "Those are the rows that this rank had when the checkpoint was saved. There are other "
        "ranks now."
    ),
    "order": "All rows are there, in another order. Go through the files by rank.",
}


def hint_rows(run, rank: int, n: int, saved: int, rows: int) -> str:
    """Which common mistake gives these rows?"""
    start, stop = bounds(rows, rank, n)
    numbers = [round((row[0] - 1) / COLUMNS) for row in run["rows"] if row]
    small, rest = divmod(rows, n)
    first = rank * small + min(rank, rest)
    if numbers == list(range(rows)):
        return HINTS["whole"]
    if start == stop and not numbers:
        return HINTS["empty"]
    if sorted(numbers) == list(range(start, stop)):
        return HINTS["order"]
    if numbers == list(range(first, first + small + (rank < rest))):
        return HINTS["even"]
    if rank < saved and numbers == list(range(*bounds(rows, rank, saved))):
        return HINTS["old"]
    if len(numbers) < stop - start:
        return "Some of your rows are missing: they lie in more than one file. Which files?"
    return (
        "For each file: where does it begin and end in the whole tensor? Which of these rows are "
        "between your first and your last?"
    )
