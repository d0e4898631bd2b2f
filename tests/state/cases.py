"""Random legal layouts for tests: every rank's parts of a few tensors."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from helpers.comm.mesh import Layout
from helpers.state.all_parts import AllParts
from helpers.state.part import Part
from helpers.state.pieces import pieces, slices
from helpers.state.placing import Seat, cut, flat, only, pending, whole

AXES = ("dp", "pp", "cp", "tp")
SHAPES = [(), (1,), (5,), (7, 3), (4, 4), (1, 6), (3, 2, 5), (0, 4)]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool)


@dataclass(frozen=True)
class Recipe:
    """How one tensor is placed: steps of (function's name, its arguments after the part)."""

    name: str
    shape: tuple[int, ...]
    steps: tuple[tuple, ...]

    def part(self, seat: Seat):
        """One rank's part; None if the rank does not hold the tensor."""
        functions = {"cut": cut, "flat": flat, "only": only, "pending": pending}
        part = whole(seat, self.name, self.shape)
        for what, *arguments in self.steps:
            part = functions[what](seat, part, *arguments)
            if part is None:
                return None
        return part


def everyone(layout: Layout, recipes, world: int | None = None) -> AllParts:
    """The parts of every rank of a layout, under keys of its own: "t0 of rank 2".

    Further ranks, up to `world`, have no parts.
    """
    ranks = []
    for rank in range(layout.world_size):
        parts = {f"{r.name} of rank {rank}": r.part(Seat(layout, rank)) for r in recipes}
        ranks.append({name: part for name, part in parts.items() if part is not None})
    return AllParts(ranks + [{}] * ((world or layout.world_size) - layout.world_size))


def numbers(shape, dtype=torch.float64, seed: int = 0) -> torch.Tensor:
    """A plain tensor in which all numbers differ, as far as the dtype allows."""
    count = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(seed)
    values = torch.randperm(count, generator=generator) + 1
    return (values % 2 if dtype == torch.bool else values).to(dtype).view(shape)


def put(part: Part, local: torch.Tensor, plain: torch.Tensor):
    """Copy a rank's numbers to their place in a whole tensor."""
    for piece in pieces(part):
        plain[slices(piece.box)] = piece.of(local)


@st.composite
def layouts(draw, world: int | None = None):
    """Up to 8 ranks, or exactly `world`, on one to three axes."""
    if world is None:
        axes = draw(st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True))
        sizes = {}
        for axis in axes:
            left = 8 // torch.Size(sizes.values()).numel()
            sizes[axis] = draw(st.integers(1, max(1, min(3, left))))
        return Layout(**sizes)
    axes = draw(st.permutations(AXES))
    splits = {4: [(4,), (2, 2), (1, 4), (4, 1), (2, 1, 2)], 3: [(3,), (1, 3)], 2: [(2,), (2, 1)]}
    shape = draw(st.sampled_from(splits[world]))
    return Layout(**dict(zip(axes, shape, strict=False)))


@st.composite
def ways(draw, size: int, parts: int):
    """`where` for `cut`: `size` indices divided among `parts` in shuffled segments.

    Sometimes several parts hold the same indices.
    """
    kinds = draw(st.integers(1, parts))  # how many different entries
    marks = sorted(draw(st.lists(st.integers(0, size), max_size=5)))
    segments = list(zip([0, *marks], [*marks, size], strict=True))
    entries = [[] for _ in range(kinds)]
    for segment in draw(st.permutations(segments)):
        if segment[0] < segment[1]:
            entries[draw(st.integers(0, kinds - 1))].append(segment)
    whose = [*range(kinds), *(draw(st.integers(0, kinds - 1)) for _ in range(parts - kinds))]
    return tuple(tuple(entries[kind]) for kind in draw(st.permutations(whose)))


@st.composite
def recipes(draw, layout: Layout, name: str, shape=None):
    """Stages, then cuts, then a flat range, then pending sums. Each step is optional."""
    shape = draw(st.sampled_from(SHAPES)) if shape is None else shape
    sizes = list(shape)
    axes, steps = list(draw(st.permutations(layout.axes))), []
    if axes and draw(st.booleans()):
        axis = axes.pop()
        some = draw(st.sets(st.integers(0, layout.size(axis) - 1), min_size=1))
        steps.append(("only", axis, tuple(sorted(some))))
    while shape and axes and draw(st.booleans()):
        axis, dim = axes.pop(), draw(st.integers(0, len(shape) - 1))
        if any(step[0] == "cut" and step[1] == dim for step in steps):
            where = None  # sizes differ between ranks now: only an even cut fits all
        else:
            where = draw(st.none() | ways(sizes[dim], layout.size(axis)))
        steps.append(("cut", dim, axis, where))
    if axes and draw(st.booleans()):
        count = draw(st.integers(1, len(axes)))
        steps.append(("flat", *axes[:count]))
        axes = axes[count:]
    while axes and draw(st.booleans()):
        count = draw(st.integers(1, len(axes)))
        steps.append(("pending", *axes[:count]))
        axes = axes[count:]
    return Recipe(name, tuple(shape), tuple(steps))


@st.composite
def models(draw, layout: Layout, shapes=None):
    """Recipes of one to four tensors, or of tensors with these shapes."""
    if shapes is None:
        shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    return [draw(recipes(layout, f"t{i}", shape)) for i, shape in enumerate(shapes)]


@st.composite
def spread(draw):
    """(layout, recipes, the parts of every rank)."""
    layout = draw(layouts())
    placed = draw(models(layout))
    return layout, placed, everyone(layout, placed)
