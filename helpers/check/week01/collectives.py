"""Exercises of week 1, second part: a tree broadcast and an all-to-all, built from messages."""

import torch

from helpers.check import hidden
from helpers.check.oracle import NotRight
from helpers.check.traffic import bytes_sent, examine_messages, named, observed, steps
from helpers.check.verdict import Verdict

BROADCASTS = [(4, 0), (2, 1), (5, 3), (8, 6), (1, 0)]  # ranks, source


def tree_broadcast(fn) -> Verdict:
    """Check `fn(worker, tensor, source)`: the source's numbers on every rank, in place.

    Messages only, N-1 in all, in ceil(log2 N) steps: in each step a rank sends at most one.
    """
    cases = [(ranks, {"source": source}) for ranks, source in BROADCASTS]
    return examine_messages("tree_broadcast", fn, cases, run_tree_broadcast, judge_tree_broadcast)


def numbers(rank: int) -> list[float]:
    """What a rank holds at first."""
    return [100.0 * hidden.shift(99) + 10 * rank + k for k in range(3)]


def run_tree_broadcast(worker, solve, source):
    tensor = torch.tensor(numbers(worker.rank))
    answer, seen = observed(solve, worker, tensor, source)
    returned = answer.tolist() if isinstance(answer, torch.Tensor) else None
    return {"after": tensor.tolist(), "returned": returned, **seen}


def judge_tree_broadcast(runs, source):
    n, after = len(runs), runs.column("after")
    own = [numbers(rank) for rank in range(n)]
    if after != [own[source]] * n:
        listing = "\n".join(f"  rank {r} holds {values}" for r, values in enumerate(after))
        finding = f"from source {source}, {own[source]}\n{listing}"
        raise NotRight(finding, hint_tree_broadcast(after, own, source, runs.column("returned")))
    sends = [sum(call.name == "send" for call in calls) for calls in runs.column("calls")]
    if sum(sends) > n - 1:
        raise NotRight(
            f"{sum(sends)} messages, where {n - 1} ranks lack the numbers",
            "Some rank receives numbers that it has already.",
        )
    fewest, taken = (n - 1).bit_length(), steps(runs.column("calls"))
    if taken > fewest:
        listing = "\n".join(f"  rank {r} sends {k}" for r, k in enumerate(sends))
        finding = f"right, but {taken} steps one after another; {fewest} can do\n{listing}"
        raise NotRight(finding, hint_steps(sends, source))


def hint_tree_broadcast(after, own, source, returned) -> str:
    n = len(after)
    if source and after == [own[0]] * n:
        return "Every rank has rank 0's numbers. Which rank is the source?"
    if after[source] != own[source]:
        return "The source's own numbers have changed: does the source receive a message?"
    if all(returned[r] == own[source] for r in range(n) if r != source):
        return "Your function returned the numbers. The caller reads the tensor that it passed in."
    if after == own:
        return (
            "Every rank holds what it held before. `tensor = …` only gives a name to another "
            "tensor; which calls write into the one that was handed over?"
        )
    lacking = [r for r in range(n) if after[r] == own[r] and r != source]
    if lacking:
        return (
            f"{named(lacking).capitalize()} got nothing. Draw for {n} ranks which ranks have the "
            "numbers after each step. In the last step some ranks may have nothing to send."
        )
    return "Some rank passed on numbers before it had got the source's."


def hint_steps(sends, source) -> str:
    if sends[source] == sum(sends):
        return "The source sends every message itself. Which other rank has them after one step?"
    if max(sends) == 1:
        return "Each rank sends once and then rests. What could it do while the next rank sends?"
    return "In some step a rank has the numbers and sends nothing, while others still lack them."


EXCHANGES = [(3, 2), (4, 1), (2, 50_000), (1, 2)]  # ranks, numbers in a part


def all_to_all(fn) -> Verdict:
    """Check `fn(worker, parts) -> list`: entry s is a tensor of its own with rank s's part for me.

    Messages only; no rank sends more than its N-1 parts for others.
    """
    cases = [(ranks, {"numel": numel}) for ranks, numel in EXCHANGES]
    return examine_messages("all_to_all", fn, cases, run_all_to_all, judge_all_to_all)


def part(source: int, target: int, numel: int) -> torch.Tensor:
    """Number k is `source target k`, as three digits."""
    return 1000.0 * hidden.shift(99) + 100 * source + 10 * target + torch.arange(numel) % 10


def run_all_to_all(worker, solve, numel):
    n, rank = worker.world_size, worker.rank
    parts = [part(rank, target, numel) for target in range(n)]
    answer, seen = observed(solve, worker, list(parts))
    kept = [part(rank, target, numel) for target in range(n)]
    seen["changed"] = [d for d in range(n) if not torch.equal(parts[d], kept[d])]
    if not isinstance(answer, list | tuple):
        return {"entries": None, "kind": type(answer).__name__, **seen}
    entries = [
        torch.equal(one, part(source, rank, numel)) or first_wrong(one, source, rank, numel)
        if isinstance(one, torch.Tensor) and one.shape == (numel,)
        else f"{'shape ' + str(tuple(one.shape)) if isinstance(one, torch.Tensor) else repr(one)}"
        for source, one in enumerate(answer)
    ]
    tensors = [one for one in answer if isinstance(one, torch.Tensor)]
    inputs = {one.untyped_storage().data_ptr() for one in parts}
    seen["aliases"] = any(one.untyped_storage().data_ptr() in inputs for one in tensors)
    seen["same"] = len({one.data_ptr() for one in tensors}) < len(tensors)
    return {"entries": entries, "kind": type(answer).__name__, **seen}


def first_wrong(one: torch.Tensor, source: int, rank: int, numel: int) -> float:
    return one[one != part(source, rank, numel)][0].item()


def judge_all_to_all(runs, numel):
    n = len(runs)
    for rank, run in enumerate(runs):
        if run["changed"]:
            raise NotRight(
                f"rank {rank}'s parts for {named(run['changed'])} have changed",
                "The parts belong to the caller. Receive into tensors of your own.",
            )
    for rank, run in enumerate(runs):
        found = run["entries"]
        if found is None:
            raise NotRight(
                f"rank {rank} returned {run['kind']}",
                "Return a list: entry s is what rank s had for this rank.",
            )
        if len(found) == n - 1:
            raise NotRight(
                f"rank {rank} returned a list of {n - 1}, of {n} ranks",
                "One entry is missing: does some rank send no message to this rank?",
            )
        if len(found) != n:
            raise NotRight(
                f"rank {rank} returned a list of {len(found)}, of {n} ranks", "One each."
            )
    for rank, run in enumerate(runs):
        if wrong := [s for s, entry in enumerate(run["entries"]) if entry is not True]:
            listing = "\n".join(
                f"  entry {s} of rank {rank}: {say(entry, s, rank, numel)}"
                for s, entry in enumerate(run["entries"])
            )
            finding = f"number k of a part is 100·source + 10·target + k % 10\n{listing}"
            raise NotRight(finding, hint_all_to_all(runs, wrong, rank, numel))
    for rank, run in enumerate(runs):
        if run["aliases"]:
            raise NotRight(
                f"rank {rank}: a tensor that was returned shares its memory with one of `parts`",
                "If the caller writes into one of the two, the other changes, too.",
            )
    sizes = [bytes_sent(calls) for calls in runs.column("calls")]
    most = (n - 1) * numel * 4
    if max(sizes) > most:
        listing = "\n".join(f"  rank {r} sends {size} bytes" for r, size in enumerate(sizes))
        raise NotRight(
            f"right, but\n{listing}\nwhere {most} would do",
            "Does a part pass through a rank that does not need it, or go to ranks that do not "
            "need it?",
        )


def origin(entry, numel) -> tuple[int, int] | None:
    """(source, target) of the part that a wrong number belongs to."""
    if isinstance(entry, bool | str) or entry != entry or not 0 <= entry < 1000 or entry % 1:
        return None
    return (int(entry) // 100, int(entry) // 10 % 10)


def say(entry, source, rank, numel) -> str:
    if entry is True:
        return "right"
    if isinstance(entry, str):
        return entry
    whose = origin(entry, numel)
    if whose is None or whose == (source, rank) or whose == (0, 0):
        return f"{entry:g}, wrong"
    return f"{entry:g}: rank {whose[0]}'s part for rank {whose[1]}"


def hint_all_to_all(runs, wrong, rank, numel) -> str:
    entries = runs[rank]["entries"]
    if runs[rank]["same"]:
        return "Several entries are the same tensor: the last message is in all of them."
    if wrong == [rank]:
        return "Only the entry from the rank itself is wrong. No message brings that entry."
    if any(isinstance(entry, str) for entry in entries):
        return "Each entry is one tensor, of the same shape as a part."
    wrong = [s for s in wrong if s != rank]  # the others tell more
    whose = [origin(entries[s], numel) for s in wrong]
    if all(w and w[1] == rank for w in whose):
        return (
            "The right parts, in another order: entry s must be rank s's part, whenever it arrives."
        )
    if all(w and w[0] == rank for w in whose):
        return "A rank still holds its own parts. Where did the other ranks' parts go?"
    if all(w and w[0] == s for w, s in zip(whose, wrong, strict=True)):
        return "From the right ranks, but meant for other ranks: which part goes where?"
    return "Which part does rank s send to rank d, and into which entry does d receive it?"
