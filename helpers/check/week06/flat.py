"""Exercise of week 6: shard tensors as one flat, padded buffer, and gather them again."""

import gc
import math

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine
from helpers.check.traffic import Traffic
from helpers.check.verdict import Verdict
from helpers.measure.memory import LiveStorages, bytes_of

# Ranks, shapes. 11 numbers on 4 ranks need one number of padding; 2 on 3 ranks leave one empty.
CASES = [
    (2, [(2, 3), (4,)]),
    (4, [(3, 2), (), (4,)]),
    (3, [(2,)]),
    (2, [(3, 3)]),
    (1, [(2, 2), (1,)]),
]
DTYPE = torch.float64
PATIENCE = 4  # times the usual timeout: on a busy machine, a rank imports for seconds


def shard_flat(fn) -> Verdict:
    """Check `fn(worker, tensors) -> (shard, gather)`: equal shards, and the tensors back."""
    cases = [(ranks, {"shapes": shapes}) for ranks, shapes in CASES]
    return examine("shard_flat", fn, cases, run_flat, judge_flat, hint_failure, PATIENCE)


def numbers(shapes) -> list[torch.Tensor]:
    """1, 2, 3, … over all tensors: no two numbers are equal, and none is 0."""
    start, made = 1 + hidden.shift(99), []
    for shape in shapes:
        count = math.prod(shape)
        made.append(torch.arange(start, start + count, dtype=DTYPE).view(shape))
        start += count
    return made


def row(shapes, ranks: int) -> list[list[float]]:
    """Each rank's shard, as it should be."""
    total = sum(math.prod(shape) for shape in shapes)
    size = -(-total // ranks)
    first = 1 + hidden.shift(99)
    flat = [float(first + k) for k in range(total)] + [0.0] * (ranks * size - total)
    return [flat[rank * size : (rank + 1) * size] for rank in range(ranks)]


def run_flat(worker, solve, shapes):
    tensors = numbers(shapes)
    with LiveStorages([]) as live:
        answer = solve(worker, tensors)
    changed = not all(map(torch.equal, tensors, numbers(shapes)))
    pair = isinstance(answer, tuple | list) and len(answer) == 2
    if not pair or not isinstance(answer[0], torch.Tensor) or not callable(answer[1]):
        return {"kind": describe(answer)}
    shard, gather = answer
    report = {
        "kind": "",
        "changed": changed,
        "shape": tuple(shard.shape),
        "dtype": str(shard.dtype),
        "shard": shard.detach().flatten().tolist(),
        "storage": bytes_of(shard),
        "shared": any(shares(shard, tensor) for tensor in tensors),
    }
    del tensors, answer
    gc.collect()
    report["held"] = live.now - report["storage"]  # besides the shard's own storage
    right = torch.tensor(report["shard"] == row(shapes, worker.world_size)[worker.rank])
    dist.all_reduce(right, dist.ReduceOp.MIN)
    if not right:  # a gather of such shards could end the ranks, and the judge needs no gather
        return report
    with Traffic() as traffic:
        report["first"] = lists(gather(shard))
    report["calls"] = [call.name for call in traffic.calls]
    with torch.no_grad():
        shard.mul_(-1)
    report["second"] = lists(gather(shard))
    return report


def describe(answer) -> str:
    if isinstance(answer, tuple | list):
        return f"{type(answer).__name__} of {', '.join(type(one).__name__ for one in answer)}"
    return type(answer).__name__


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0


def lists(gathered):
    """Nested lists of numbers; in words what is not a tensor, or has another dtype."""
    if not isinstance(gathered, list | tuple):
        return type(gathered).__name__
    return [t.tolist() if is_like_the_tensors(t) else in_words(t) for t in gathered]


def is_like_the_tensors(value) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == DTYPE


def in_words(value) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def judge_flat(runs, shapes):
    n, total = len(runs), sum(math.prod(shape) for shape in shapes)
    size = -(-total // n)
    for rank, run in enumerate(runs):
        if run["kind"]:
            raise NotRight(
                f"rank {rank} returned {run['kind']}",
                "Return two things: the shard, a tensor, and gather, a function.",
            )
        if run["changed"]:
            raise NotRight(
                f"rank {rank}'s tensors have changed",
                "The tensors belong to the caller. Write into a buffer of your own.",
            )
    shards = [run["shard"] for run in runs]
    finding = f"shapes {shapes}, {total} numbers\n" + "\n".join(
        f"  rank {rank}: shard of shape {run['shape']}: {plain(run['shard'])}"
        for rank, run in enumerate(runs)
    )
    if any(len(run["shape"]) != 1 for run in runs):
        raise NotRight(finding, "A shard is flat: it has one dim.")
    for rank, run in enumerate(runs):
        if run["dtype"] != str(DTYPE):
            raise NotRight(
                f"the tensors are {DTYPE}, rank {rank}'s shard is {run['dtype']}",
                "The padding must have the tensors' dtype. Which dtype has torch.zeros(n)?",
            )
    if shards != row(shapes, n):
        raise NotRight(finding, hint_shards(shards, total, n, size))
    for rank, run in enumerate(runs):
        judge_memory(run, rank, size)
        judge_gathered(run, rank, n, shapes)


def plain(values) -> str:
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"


def hint_shards(shards, total, n, size) -> str:
    """Which common mistake gives these shards?"""
    lengths = [len(shard) for shard in shards]
    together = [number for shard in shards for number in shard]
    first = 1 + hidden.shift(99)
    real = [float(k) for k in range(first, first + total)]
    if lengths[0] == total > size and len(set(lengths)) == 1:
        return "Every rank has all numbers. Which part is this rank's?"
    if len(set(lengths)) > 1:
        return (
            "The shards have different lengths, and a gather needs equal ones. How many numbers "
            "must be added at the end, so that the ranks divide the length?"
        )
    if n > 1 and all(shard == shards[0] for shard in shards):
        return "Every rank has the same shard. On which number must the slice depend?"
    if lengths[0] == total // n < size:
        return "The last numbers are on no rank: the division left a tail. Round up, and pad."
    if lengths[0] > size:
        return f"A shard of {size} numbers is enough. How much padding do you need at least?"
    if together[:total] == real:
        return (
            "The padding is not zero. A norm over the shards adds its square, as if it belonged to "
            "the model. Which function makes zeros?"
        )
    if sorted(together)[-total:] == real:
        return "All numbers are there, in another order. Rank 0 has the first ones, in a row."
    return "Put all tensors into one row, zeros at its end, and cut it into N equal parts."


def judge_memory(run, rank, size):
    nbytes = size * DTYPE.itemsize
    if run["shared"]:
        raise NotRight(
            f"rank {rank}'s shard shares the memory of a tensor",
            "The caller frees its tensors after the call. Which method copies a slice?",
        )
    if run["storage"] > nbytes:
        raise NotRight(
            f"rank {rank}'s shard has {nbytes} bytes and keeps {run['storage']} bytes alive",
            "A slice is a view: it keeps the whole buffer. Then sharding saves nothing. Which "
            "method makes a copy of the slice?",
        )
    if run["held"] > 0:
        raise NotRight(
            f"after the call rank {rank} still holds {run['held']} bytes besides its shard",
            "gather holds tensors, so sharding saves nothing. Shapes are enough for it: which "
            "tensors do the lines of gather name?",
        )


def judge_gathered(run, rank, n, shapes):
    right = [tensor.tolist() for tensor in numbers(shapes)]
    negative = [(-tensor).tolist() for tensor in numbers(shapes)]
    if run["first"] != right:
        raise NotRight(
            f"shapes {shapes}: rank {rank} gathered {run['first']}",
            hint_gathered(run["first"], right),
        )
    if run["second"] != negative:
        raise NotRight(
            f"the shards were multiplied by -1; then rank {rank} gathered {run['second']}",
            "gather(shard) must read the shard that it is given, each time: the optimizer changes "
            "it between two calls.",
        )
    if n > 1 and "all_reduce" in run["calls"]:
        raise NotRight(
            f"right, but rank {rank} used an all-reduce",
            "It sends twice the bytes, and adds zeros. Which collective puts shards in a row?",
        )


def hint_gathered(found, right) -> str:
    if not isinstance(found, list):
        return "gather returns a list with one tensor for each of the tensors."
    if len(found) != len(right):
        return f"There were {len(right)} tensors, and gather returned {len(found)}."
    if any(isinstance(one, str) for one in found):
        return "gather returns tensors of the dtype that the tensors had. Which line changes it?"
    return (
        "The padding is no part of a tensor, and each tensor has its shape. Where does each begin?"
    )


def hint_failure(finding: str) -> str:
    if "split_with_sizes" in finding:
        return "The gathered buffer has padding at its end. Which part of it do the tensors fill?"
    if "shape '" in finding or "invalid for input of size" in finding:
        return "The gathered buffer has padding at its end, and each tensor its own shape."
    if "output tensor size must be equal" in finding or "SIGABRT" in finding:
        return "An all-gather needs shards of one size on all ranks. Is the last one shorter?"
    return ""
