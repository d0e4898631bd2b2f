"""Exercises of week 3: a shard of the data on each rank, and the same first state."""

import torch
from torch import nn

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine
from helpers.check.traffic import named
from helpers.check.verdict import Verdict

SHARDS = [(2, 4), (3, 8), (3, 3), (2, 1), (4, 6), (4, 3)]  # ranks, rows
LENGTH = 3


def shard(fn) -> Verdict:
    """Check `fn(worker, batch) -> (b, T)`: each row on one rank, in rank order, evenly."""
    cases = [(ranks, {"rows": rows}) for ranks, rows in SHARDS]
    return examine("shard", fn, cases, run_shard, judge_shard, hint_shard_error)


def global_batch(rows: int) -> torch.Tensor:
    """Number k of row r is 10 r + k."""
    return 1000 * hidden.shift(99) + 10 * torch.arange(rows)[:, None] + torch.arange(LENGTH)


def run_shard(worker, solve, rows):
    batch = global_batch(rows)
    answer = solve(worker, batch)
    if not isinstance(answer, torch.Tensor):
        return {"kind": type(answer).__name__, "shape": None, "rows": []}
    whole = answer.ndim == 2 and answer.shape[1] == LENGTH
    every = global_batch(rows).tolist()
    return {
        "kind": "a tensor",
        "shape": tuple(answer.shape),
        "rows": [every.index(row) if row in every else None for row in answer.tolist()]
        if whole
        else [],
    }


def judge_shard(runs, rows):
    n, held = len(runs), runs.column("rows")
    for rank, run in enumerate(runs):
        if run["shape"] is None:
            raise NotRight(
                f"{rows} rows: rank {rank} returned {run['kind']}",
                "Return a tensor (b, T) on every rank; it may have no rows.",
            )
        if len(run["shape"]) != 2 or run["shape"][1] != LENGTH:
            raise NotRight(
                f"a batch of shape {(rows, LENGTH)}: rank {rank} returned {run['shape']}",
                "A shard is (b, T): whole rows, also when there is one of them, or none. "
                "Which dim of the batch counts the rows?",
            )
        if None in run["rows"]:
            raise NotRight(
                f"{rows} rows: rank {rank} returned rows that are not in the batch",
                "A shard holds the batch's own numbers. Which line changed them?",
            )
    listing = "\n".join(f"  rank {r}: {say_rows(mine)}" for r, mine in enumerate(held))
    finding = f"{rows} rows\n{listing}"
    everything = [row for mine in held for row in mine]
    if everything == list(range(rows)):
        if max(map(len, held)) - min(map(len, held)) > 1:
            raise NotRight(
                finding,
                "Each row is on one rank, but the slowest rank has the most rows, and the other "
                "ranks wait for it. By how many rows must two ranks differ?",
            )
        return
    raise NotRight(finding, hint_shard(held, rows, n))


def say_rows(rows) -> str:
    return f"row{'s' * (len(rows) != 1)} {', '.join(map(str, rows))}" if rows else "no rows"


def hint_shard(held, rows, n) -> str:
    everything = [row for mine in held for row in mine]
    lost = sorted(set(range(rows)) - set(everything))
    if all(mine == held[0] for mine in held):
        if held[0] == list(range(rows)):
            return "Every rank holds the whole batch: N ranks do the same work N times."
        return "Every rank holds the same rows. On which number must the split depend?"
    twice = sorted({row for row in everything if everything.count(row) > 1})
    if lost and twice:
        return (
            f"{say_rows(lost).capitalize()} on no rank, and {say_rows(twice)} on more than one: "
            "the ranks did not split one and the same order. Does each rank draw its own order?"
        )
    if lost:
        return (
            f"{say_rows(lost).capitalize()} {'is' if len(lost) == 1 else 'are'} on no rank. "
            f"How many rows are left over when {rows} rows are split over {n} ranks?"
        )
    if len(everything) > rows:
        return (
            f"{say_rows(twice).capitalize()} would count more than once in the gradient. "
            "May a rank have fewer rows than another?"
        )
    return (
        "Each row is on one rank, but the ranks' rows, put one after another in rank order, are "
        "not in the batch's order."
    )


def hint_shard_error(finding: str) -> str:
    if "IndexError" in finding:
        return (
            "Does the split return as many parts as ranks, also for a few rows? "
            "Print the number of parts."
        )
    if "split_with_sizes" in finding or "stack expects" in finding or "shape '" in finding:
        return "The number of rows may not be a multiple of the number of ranks."
    return ""


STATES = (2, 3)  # ranks


class State(nn.Module):
    """Parameters, one of them frozen, and buffers: one of integers, one not in state_dict()."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.frozen = nn.Linear(4, 2, bias=False).requires_grad_(False)
        self.register_buffer("running_mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("table", torch.zeros(2, 3), persistent=False)


def broadcast_state(fn) -> Verdict:
    """Check `fn(worker, model)`: rank 0's parameters and buffers on every rank, in place."""
    cases = [(ranks, {}) for ranks in STATES]
    return examine("broadcast_state", fn, cases, run_state, judge_state, hint_state_error)


def tensors_of(model) -> dict[str, torch.Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


def first_numbers(model, rank: int) -> dict[str, torch.Tensor]:
    """Every number is on one rank only, and no rank has a mean of the others' numbers.

    The large integer does not fit into a float32.
    """
    numbers = {}
    for place, (name, tensor) in enumerate(tensors_of(model).items()):
        first = 1000.0 * hidden.shift(99) + 100 * (rank + 1) ** 2 + 10 * place
        row = first + torch.arange(tensor.numel(), dtype=torch.float64)
        numbers[name] = (row + (2**24 + 1) * (name == "steps")).view(tensor.shape).to(tensor.dtype)
    return numbers


def run_state(worker, solve):
    model, n = State(), worker.world_size
    start = [first_numbers(model, rank) for rank in range(n)]
    before = tensors_of(model)
    for name, tensor in before.items():
        tensor.detach().copy_(start[worker.rank][name])
    views = {name: tensor.detach().flatten() for name, tensor in before.items()}
    solve(worker, model)
    after, report = tensors_of(model), {}
    for name, kept in views.items():
        now = after.get(name)
        report[name] = {
            "kind": "parameter" if isinstance(before[name], nn.Parameter) else "buffer",
            "frozen": isinstance(before[name], nn.Parameter) and not before[name].requires_grad,
            "kept": whose(kept, start, name),  # what the tensor of before holds now
            "model": "gone" if now is None else whose(now.detach().flatten(), start, name),
            "same": now is before[name],
        }
    return report


def whose(now: torch.Tensor, start, name: str) -> int | str:
    """The rank whose first numbers these are."""
    for rank, numbers in enumerate(start):
        if now.shape == numbers[name].flatten().shape and torch.equal(
            now.to(numbers[name].dtype), numbers[name].flatten()
        ):
            return rank
    total = sum(numbers[name].double().flatten() for numbers in start)
    near = [now.shape == total.shape and torch.allclose(now.double(), total / k, rtol=1e-6)
            for k in (1, len(start))]  # fmt: skip
    if near[0]:
        return "sum"
    if near[1]:
        return "mean"
    first = start[0][name].flatten().double()
    if now.shape == first.shape and torch.allclose(now.double(), first, rtol=1e-6):
        return "rounded"
    return "other"


ROUNDED = "An integer was sent as a float, which cannot hold it. Which call keeps the dtype?"
WORDS = {
    "sum": "the sum over the ranks",
    "mean": "the mean over the ranks",
    "rounded": "nearly rank 0's numbers",
    "other": "something else",
    "gone": "no tensor of that name",
}


def judge_state(runs):
    for rank, report in enumerate(runs):
        if all(row["kept"] == 0 and row["model"] == 0 for row in report.values()):
            continue
        listing = "\n".join(f"  {name} ({kind_of(row)}): {held_in(row)}"
                            for name, row in report.items())  # fmt: skip
        finding = f"afterwards the model of rank {rank} holds\n{listing}"
        raise NotRight(finding, hint_state(runs, rank))


def kind_of(row) -> str:
    return ("frozen " if row["frozen"] else "") + row["kind"]


def held_in(row) -> str:
    words = WORDS.get(row["model"], f"rank {row['model']}'s numbers")
    if row["kept"] != row["model"]:
        return f"{words}, but in another tensor"
    return words


def hint_state(runs, rank) -> str:
    report = runs[rank]
    if any(row["model"] != 0 for row in runs[0].values()):
        found = {row["model"] for row in runs[0].values()}
        if found <= {0, "rounded"}:
            return ROUNDED
        if found & {"mean", "sum"}:
            return (
                "Rank 0's own numbers have changed: the ranks' numbers were added. Here one rank "
                "sends and the others receive. Which collective does that?"
            )
        if all(row["model"] == len(runs) - 1 for row in runs[0].values()):
            return "Every rank has the last rank's numbers. Which rank is the source?"
        return "Rank 0's own numbers have changed. Which rank is the source?"
    moved = [row for row in report.values() if row["model"] == 0 and row["kept"] != 0]
    if moved:
        return (
            "The right numbers, in new tensors. An optimizer that was built before still holds "
            "the old tensors. Which call writes into a tensor that exists already?"
        )
    wrong = {name: row for name, row in report.items() if row["model"] != 0}
    if any(row["model"] == "rounded" for row in wrong.values()):
        return ROUNDED
    if all(row["model"] == rank for row in wrong.values()):
        if len(wrong) == len(report):
            return (
                "Every rank has kept its own numbers. Do all ranks name the same source, and do "
                "the received numbers reach the model?"
            )
        if all(row["kind"] == "buffer" for row in wrong.values()):
            if list(wrong) == ["table"]:
                return (
                    "One buffer is not in state_dict() (persistent=False), but the forward uses "
                    "it. Which method lists all buffers of a model?"
                )
            return (
                "The parameters are rank 0's. Which other tensors does the forward use, although "
                "no optimizer trains them?"
            )
        if any(row["frozen"] for row in wrong.values()):
            return "Some parameters do not train, but the forward uses them."
    return f"On {named([rank])} some tensors hold neither rank 0's numbers nor their own."


def hint_state_error(finding: str) -> str:
    if "was waiting in broadcast" in finding:
        return (
            "In a broadcast *every* rank makes the call, and all name the same source: one sends, "
            "the others receive."
        )
    if "leaf Variable that requires grad" in finding:
        return (
            "Autograd records changes of parameters. To write into one without a record, use the "
            "same memory without its history."
        )
    return ""
