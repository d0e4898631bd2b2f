"""How devices may share an operator: its strategies, their messages, and what resharding costs.

On each axis of a grid of devices, an operator has a **role**. A role cuts the input x, the output
y, the parameters w, or none of them, and says how y lies on the axis afterwards: cut by "batch",
cut by "width", or "whole" on each device.

    role        takes     gives     cuts     sends
    batch       batch     batch     x y      an all-reduce of w's gradients
    sharded     batch     batch     x y w    two all-gathers of w, a reduce-scatter of its gradients
    column      whole     width       y w    an all-reduce of x's gradient
    row         width     whole     x   w    an all-reduce of y
    width       width     width     x y      nothing: attention's heads, activation functions
    whole       whole     whole              nothing: each device computes everything

A tensor that lies otherwise than the next operator takes it is resharded, and so is its gradient.
A matrix product has no role "whole": Alpa never repeats the work of heavy operators.

Source: Zheng et al. 2022 (Alpa), arXiv:2201.12023, section 4.1, tables 1 to 3. "sharded" is its
section 4.3 (ZeRO) as a strategy of its own. Costs are alpha + beta times the bytes of a ring.
"""

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from helpers.plans.messages import Message
from helpers.simulate.topology import Link

ROLES = {  # role -> takes, gives, what it cuts of x, y, w, and v: a bias or a norm's scale
    "batch": ("batch", "batch", "xy"),
    "sharded": ("batch", "batch", "xywv"),
    "column": ("whole", "width", "ywv"),
    "row": ("width", "whole", "xw"),
    "width": ("width", "width", "xy"),
    "whole": ("whole", "whole", ""),
}
HEAVY = ("batch", "sharded", "column", "row")
KINDS = {  # kind of an operator -> its roles
    "linear": HEAVY,
    "embedding": HEAVY,  # a row of the matrix is a token's: "row" cuts the vocabulary
    "head": HEAVY,  # with the loss; "column" cuts the vocabulary
    "heads": ("batch", "width"),
    "pointwise": ("batch", "width", "whole"),
    "norm": ("batch", "whole"),
}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Devices on axes: `Grid(sizes={"dp": 2, "tp": 4}, links={"dp": slow, "tp": fast})`.

    Attributes:
        sizes: axis -> devices along it.
        links: axis -> the link between them.
    """

    sizes: Mapping[str, int]
    links: Mapping[str, Link]

    def seconds(self, message: Message) -> float:
        """Alpha for each call, and the bytes of a ring: Alpa's cost of a collective."""
        link = self.links[message.axis]
        return message.times * link.alpha + message.sent / link.bytes_per_second


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator on a tensor of (sequences, tokens, width).

    Attributes:
        name: in plans.
        kind: one of KINDS.
        inputs: the numbers of the operators whose outputs it takes; none for the batch's data.
        sequences, tokens: of its tensors.
        width_in, width_out: of x and y.
        parameters: (numbers, "w" or "v") of each: rows cut a matrix w, but not a bias v.
        units_in, units_out: what a cut of the width may not divide, such as heads; None: the width.
        flops: of a forward.
        tied: the number of the operator that has its parameters.
    """

    name: str
    kind: str
    inputs: tuple[int, ...] = ()
    sequences: int
    tokens: int
    width_in: int
    width_out: int
    parameters: tuple[tuple[int, str], ...] = ()
    units_in: int | None = None
    units_out: int | None = None
    flops: float = 0.0
    tied: int | None = None

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is none of {', '.join(KINDS)}")


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to share an operator.

    Attributes:
        roles: axis -> role.
        messages: of a forward and a backward.
        states: bytes on each device, of parameters, gradients and the optimizer.
        kept: bytes of the output, for the backward.
    """

    roles: Mapping[str, str]
    messages: Sequence[Message]
    states: float
    kept: float

    def lies(self, place: int) -> dict[str, str]:
        """axis -> how x (place 0) or y (place 1) lies."""
        return {axis: ROLES[role][place] for axis, role in self.roles.items()}


def strategies(
    operator: Operator,
    grid: Grid,
    *,
    number_bytes: float = 2,
    state_bytes: float = 16,
    allowed: Mapping[str, Container[str]] | None = None,
) -> list[Strategy]:
    """All strategies whose cuts divide the operator.

    Args:
        number_bytes: of an activation, a parameter and a gradient in messages.
        state_bytes: of a parameter with its gradient and its optimizer's state.
        allowed: axis -> the roles to choose from; an axis that is not named has all roles.
    """
    axes = [axis for axis, size in grid.sizes.items() if size > 1]
    choices = [
        [role for role in KINDS[operator.kind] if role in (allowed or {}).get(axis, ROLES)]
        for axis in axes
    ]
    rows, found = operator.sequences * operator.tokens * number_bytes, []
    parameters = () if operator.tied is not None else operator.parameters
    for several in itertools.product(*choices):
        roles = dict(zip(axes, several, strict=True))

        def cut(what, but=None, roles=roles):  # into how many pieces, without an axis
            cuts = (axis for axis, role in roles.items() if what in ROLES[role][2] and axis != but)
            return math.prod(grid.sizes[axis] for axis in cuts)

        if divides(operator, roles, grid):
            states = sum(numbers * state_bytes / cut(what) for numbers, what in parameters)
            sizes = {"x": rows * operator.width_in, "y": rows * operator.width_out, "row": rows}
            weights = [(numbers * number_bytes, what) for numbers, what in parameters]
            found.append(Strategy(
                roles=roles, messages=sent(operator, roles, grid, sizes, weights, cut),
                states=states, kept=sizes["y"] / cut("y"),
            ))  # fmt: skip
    return found


def divides(operator: Operator, roles: Mapping[str, str], grid: Grid) -> bool:
    """Whether the roles cut sequences, columns and rows into equal parts."""

    def cut(*names):
        return math.prod(grid.sizes[axis] for axis, role in roles.items() if role in names)

    inside = operator.units_in or operator.width_in
    outside = operator.units_out or operator.width_out
    sizes = (operator.sequences, outside, inside)
    names = (("batch", "sharded"), ("column", "width"), ("row", "width"))
    return not any(size % cut(*own) for size, own in zip(sizes, names, strict=True))


def sent(operator: Operator, roles, grid: Grid, sizes, weights, cut) -> list[Message]:
    """The messages of a forward and a backward.

    Args:
        sizes: bytes of x, of y, and of one number for each token.
        weights: (bytes, "w" or "v") of each parameter.
        cut: (what, without an axis) -> pieces.
    """
    found = []
    for axis, role in roles.items():

        def add(call, payload, what, times=1, axis=axis):
            of = {"axis": axis, "ranks": grid.sizes[axis], "what": what, "times": times}
            found.append(Message(call=call, payload=payload, **of))

        for size, what in weights:
            if role == "batch":
                add("all_reduce", size / cut(what, axis), "gradients")
            elif role == "sharded":
                add("all_gather", size / cut(what, axis), "parameters", times=2)
                add("reduce_scatter", size / cut(what, axis), "shards")
        if role == "column" and operator.inputs:
            add("all_reduce", sizes["x"] / cut("x", axis), "activations")
        if role == "column" and operator.kind == "head":  # the loss: the maximum, and the sum
            add("all_reduce", sizes["row"] / cut("x", axis), "loss", times=2)
        if role == "row":
            add("all_reduce", sizes["y"] / cut("y", axis), "activations")
    return found


def resharding(
    size: float, given: Mapping[str, str], taken: Mapping[str, str], grid: Grid
) -> list[Message]:
    """The messages that bring a tensor from one placement to another, and its gradient back.

    Args:
        size: bytes of the whole tensor.
        given, taken: axis -> "batch", "width" or "whole".
    """
    found = []
    for axis in given:
        kept = [other for other in given if other != axis and given[other] == taken[other]]
        cut = math.prod(grid.sizes[other] for other in kept if given[other] != "whole")
        of = {"axis": axis, "ranks": grid.sizes[axis], "what": "resharding"}
        pair = (given[axis], taken[axis])
        if pair[0] == pair[1]:
            continue
        if "whole" in pair:  # one way costs nothing, each device takes its part; back, they gather
            found.append(Message(call="all_gather", payload=size / cut, **of))
        else:
            part = size / cut / grid.sizes[axis]
            found.append(Message(call="all_to_all", payload=part, times=2, **of))
    return found
