"""Locate where a strategy first departs from its twin: the rank, the pass and the module."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from helpers.comm.mesh import Layout
from helpers.training.guess import apart, guess, missing_sum, unseen
from helpers.training.witness import Witness

# What to compare, in order from cause to effect.
PASSES = ("start", "moments", "forward", "loss", "backward", "gradient", "update")
NEAR = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative to the largest number of a tensor


@dataclass(frozen=True, kw_only=True)
class Location:
    """The first departure.

    Attributes:
        step, rank: of the departure.
        kind: one of PASSES. "start": a parameter before the step. "moments": the optimizer's state
            before the step. "forward": the output of a module. "backward": the gradient of that
            output. "gradient": of a parameter, after all sums. "update": of a parameter.
        name: of the module or parameter; "" for the loss.
        off: the largest difference, relative to the largest number of the twin's tensor.
        guess: the likely mistake; "" if no known mistake fits.
    """

    step: int
    rank: int
    kind: str
    name: str
    off: float
    guess: str

    def __str__(self):
        what = {
            "start": f"the parameter {self.name} departs before the step",
            "moments": f"the optimizer's state of {self.name} departs before the step",
            "forward": f"the output of {self.name} departs first",
            "loss": "the outputs of all modules agree with the twin's, but the loss departs",
            "backward": f"the gradient of the output of {self.name} departs first",
            "gradient": f"the backward agrees, but the gradient of {self.name} departs",
            "update": f"the gradients agree, but the update of {self.name} departs",
        }[self.kind]
        where = f"step {self.step}, rank {self.rank}: {what}, by {self.off:.2g} of its size"
        return f"{where}. {self.guess}" if self.guess else where


def locate(
    step: int, layout: Layout, twin: Witness, ranks: Sequence[Witness], dtype: torch.dtype
) -> Location | None:
    """Return the first departure of this step; None if everything that was recorded agrees.

    The earliest pass counts first, then the earliest module, then the lowest rank. A rank may hold
    an even part of a tensor (columns, rows, positions): it is compared with the same part of the
    twin's tensor. Modules that are cut in other ways are left out.
    """
    near = NEAR.get(dtype, 0.05)
    for kind in PASSES:
        found = []
        for rank, seen in enumerate(ranks):
            at = layout.coordinates(rank)
            for place, (name, ours, theirs) in enumerate(pairs(kind, twin, seen)):
                if ours is None:  # another rank has this module
                    continue
                whole = theirs.shape == ours.shape
                theirs = part_of(theirs, ours.shape, layout, at)
                if theirs is not None and not (far := off(ours, theirs)) <= near:
                    found.append((place, rank, name, far, ours, theirs, whole))
                    break
        if found:
            _, rank, name, far, ours, theirs, whole = min(found, key=lambda one: one[:2])
            why = guess(ours, theirs, layout, kind)
            if whole and kind in ("forward", "backward"):
                every = outputs(kind, name, ranks, rank)
                why = why or missing_sum(every, theirs, rank, layout) or apart(every, rank, layout)
            if kind == "gradient":
                every = [seen.gradients.get(name) for seen in ranks]
                why = missing_sum(every, twin.gradients[name], rank, layout) or why
            if kind == "loss":
                why = unseen(twin.numbers, [seen.numbers for seen in ranks]) or why
            return Location(step=step, rank=rank, kind=kind, name=name, off=far, guess=why)
    return None


def outputs(kind: str, name: str, ranks: Sequence[Witness], rank: int) -> list:
    """Every rank's tensor of a module; None for a rank with other sequences or another shape."""
    own = getattr(ranks[rank], kind)[name]
    every = []
    for seen in ranks:
        one = getattr(seen, kind).get(name)
        same = torch.equal(seen.numbers, ranks[rank].numbers)
        every.append(one if one is not None and same and one.shape == own.shape else None)
    return every


def pairs(kind: str, twin: Witness, seen: Witness) -> Iterator[tuple]:
    """Yield (name, ours, the twin's) of a pass, in the twin's order.

    The twin's rows are this rank's rows. Ours is None for a module that this rank does not have.
    """
    match kind:
        case "loss":
            yield "", *(torch.tensor(one.loss, dtype=torch.float64) for one in (seen, twin))
        case "forward" | "backward":
            theirs, ours = getattr(twin, kind), getattr(seen, kind)
            for name, value in theirs.items():
                if len(value) == len(twin.numbers):
                    value = value[seen.numbers.to(value.device)]
                yield name, ours.get(name), value
        case "moments":
            for name, slots in twin.optimizer.items():
                for slot, value in slots.items():
                    ours = seen.optimizer.get(name, {}).get(slot)
                    if isinstance(value, torch.Tensor):
                        nothing = torch.zeros_like(value)
                        yield f"{name} ({slot})", nothing if ours is None else ours, value
        case "start":
            yield from together(seen.before, twin.before)
        case "gradient":
            # from the last module to the first, in the order of the backward
            yield from reversed(list(together(seen.gradients, twin.gradients)))
        case "update":
            ours, theirs = (way(one) for one in (seen, twin))
            yield from together(ours, theirs)


def way(one: Witness) -> dict[str, torch.Tensor]:
    """Return how much each parameter changed in the step."""
    return {name: one.parameters[name] - one.before[name] for name in one.parameters}


def together(ours: Mapping, theirs: Mapping) -> Iterator[tuple]:
    for name, value in theirs.items():
        yield name, ours.get(name, torch.zeros_like(value)), value


def part_of(theirs: torch.Tensor, shape, layout: Layout, at: Mapping[str, int]):
    """Return the part of the twin's tensor with this shape on a rank; None if no part fits.

    A dim that is smaller by the size of an axis is cut along that axis, evenly.
    """
    if theirs.ndim != len(shape):
        return None
    for dim, size in enumerate(shape):
        if theirs.shape[dim] == size:
            continue
        axes = [axis for axis in layout.axes if size * layout.size(axis) == theirs.shape[dim]]
        if not axes:
            return None
        theirs = theirs.narrow(dim, at[axes[-1]] * size, size)
    return theirs


def off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference over the twin's largest number; NaN if there is a NaN."""
    if not ours.numel():
        return 0.0
    far = (ours.cpu().double() - theirs.cpu().double()).abs().max().item()
    size = theirs.double().abs().max().item()
    return far / size if size else (0.0 if far == 0 else math.inf)
