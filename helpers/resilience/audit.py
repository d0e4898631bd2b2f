"""Find checkpoints that lie: whole, readable files with other numbers than training had.

A checkpoint's checksums prove that it is as it was written, not that it was right. The proof is to
train: from each checkpoint to the next, and to compare. That costs no more than the training did;
for a large model, one step before a checkpoint that was kept is enough.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from helpers.data.batch import Batch
from helpers.parallel.strategy import Strategy
from helpers.state.seal import WRITING, BrokenCheckpoint, age, verify

LATEST = "latest"  # a file with the name of the newest checkpoint, as many trainers keep one


def check_checkpoints(
    folder: Path, make: Callable[[], Strategy], batch_of: Callable[[int], Batch]
) -> list[str]:
    """Return what is wrong with a training run's checkpoints; [] if nothing is.

    The checkpoints are made by `strategy.save(folder / f"step_{updates:06d}", updates=updates)`.

    Args:
        make: a new strategy, as the run's.
        batch_of: the batch of update 0, 1, ….
    """
    found, whole, zeros = [], {}, {}
    every = (path for path in folder.glob("step_*") if not path.name.endswith(WRITING))
    for path in sorted(every, key=age):
        try:
            verify(path)
            whole[path.name] = path
        except BrokenCheckpoint as error:
            found.append(f"{path.name} is not whole: {str(error).replace(str(folder), '…')}")
    if not whole:
        return [*found, "no checkpoint is whole: training starts anew"]
    states = {}
    for name, path in whole.items():
        strategy = make()
        try:
            updates = strategy.restore(path).get("updates")
            why = "" if updates is not None else "does not say after how many updates it was saved"
        except ValueError as error:
            why = f"cannot be loaded: {str(error).replace(str(folder), '…')}"
        if why:
            found.append(f"{name} {why}")
            strategy.close()
            continue
        states[name] = updates, strategy.full_state()
        if name != f"step_{updates:06d}":
            found.append(f"{name} says that it was saved after {updates} updates")
        empty = [n for n, v in flat(states[name][1]["optimizer"]).items() if not v.any()]
        if empty and updates:
            zeros[name] = f"{name} has no numbers in {some(empty)}"
        strategy.close()
    named = folder / LATEST
    newest = list(whole)[-1]
    if named.exists() and (name := named.read_text().strip()) != newest:
        why = "is older than" if name in whole else "is no whole checkpoint; the newest is"
        found.append(f"`{LATEST}` names {name}, which {why} {newest}")
    if strategy.unsaved and len(states) > 1:
        found.append(f"the numbers were not compared: no checkpoint has {strategy.unsaved}")
        states = {}
    for before, after in itertools.pairwise(states):
        wrong = compared(whole[before], states[before], after, states[after], make, batch_of)
        found += wrong
        if not wrong:  # training has these zeros, too
            zeros = {name: text for name, text in zeros.items() if name not in (before, after)}
    return [*zeros.values(), *found]


def compared(
    path: Path,
    start: tuple[int, Mapping],
    after: str,
    end: tuple[int, Mapping],
    make: Callable[[], Strategy],
    batch_of: Callable[[int], Batch],
) -> list[str]:
    """Train from one checkpoint to the next, and one step further: what is the next one really?"""
    before, (first, old), (last, saved) = path.name, start, end
    if not differing(saved, old) and last != first:
        return [f"{after} has the numbers of {before}"]
    right = trained(path, make, map(batch_of, range(first, last)))
    wrong = differing(saved, right)
    if not wrong:
        return []
    how = f"{after} is not what {last - first} updates make of {before}"
    further = trained(path, make, map(batch_of, range(first, last + 1)))
    if not differing(saved["model"], further["model"]):
        return [f"{how}: its parameters are of update {last + 1}"]
    if not any(name.startswith("model.") for name in wrong):
        return [f"{how}: parameters are right, but not the optimizer's {some(wrong)}"]
    anew = trained(path, make, map(batch_of, range(last - first)))
    if not differing(saved, anew):
        return [f"{how}, but what batches 0 to {last - first - 1} make: the data began anew"]
    if not set(wrong) & set(differing(saved, old)):
        return [f"{how}: {some(wrong)} are still of {before}"]
    return [f"{how}: {len(wrong)} tensors differ, the first is {wrong[0]}"]


def trained(path: Path, make: Callable[[], Strategy], batches: Iterable[Batch]) -> dict:
    """The full state after updates with these batches, from a checkpoint on."""
    strategy = make()
    strategy.restore(path)
    for batch in batches:
        strategy.step(batch)
    state = strategy.full_state()
    strategy.close()
    return state


def some(names: list[str]) -> str:
    """The first names, and how many there are."""
    return names[0] + (f" and {len(names) - 1} others" if len(names) > 1 else "")


def flat(state: Mapping, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors and numbers of a nested state, by dotted name."""
    found = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = torch.as_tensor(value)
    return found


def differing(one: Mapping, other: Mapping) -> list[str]:
    """The names whose numbers are not bit for bit the same in both states."""
    left, right = flat(one), flat(other)
    return [n for n in right if n not in left or not torch.equal(left[n], right[n])]
