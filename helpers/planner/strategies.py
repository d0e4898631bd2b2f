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
from dataclasses import dataclass, field

from helpers.plans.messages import Message
from helpers.simulate.topology import Link

ROLES = {  # role -> takes, gives, what it cuts of x, y and w
    "batch": ("batch", "batch", "xy"),
    "sharded": ("batch", "batch", "xyw"),
    "column": ("whole", "width", "yw"),
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

    @property
    def devices(self) -> int:
        return math.prod(self.sizes.values())


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator on a tensor of (sequences, tokens, width).

    Attributes:
        name: in plans.
        kind: one of KINDS.
        inputs: the numbers of the operators whose outputs it takes; none for the batch's data.
        sequences, tokens: of its tensors.
        width_in, width_out: of x and y.
        parameters: (numbers, whether "row" cuts them too) of each: a bias is cut by columns alone.
        units_in, units_out: what a cut of the width may not divide, such as heads; None: the width.
        flops: of a forward.
        tied: the number of an operator whose parameters it uses.
    """

    name: str
    kind: str
    inputs: tuple[int, ...] = ()
    sequences: int
    tokens: int
    width_in: int
    width_out: int
    parameters: tuple[tuple[int, bool], ...] = ()
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
    messages: Sequence[Message] = field(default=())
    states: float = 0.0
    kept: float = 0.0

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
        allowed: axis -> the roles to choose from; an axis that is not named has all roles.
        number_bytes: of an activation, a parameter and a gradient in messages.
        state_bytes: of a parameter with its gradient and its optimizer's state.
    """
    axes = [axis for axis, size in grid.sizes.items() if size > 1]
    every = itertools.product(KINDS[operator.kind], repeat=len(axes))
    found = [Strategy(roles=dict(zip(axes, roles, strict=True))) for roles in every]
    for axis, roles in (allowed or {}).items():
        found = [one for one in found if one.roles.get(axis, "batch") in roles]
    return [
        Strategy(
            roles=one.roles,
            messages=sent(operator, one.roles, grid, number_bytes),
            states=states(operator, one.roles, grid, state_bytes),
            kept=operator.sequences
            * operator.tokens
            * operator.width_out
            * number_bytes
            / pieces(one.roles, grid, "y"),
        )
        for one in found
        if divides(operator, one.roles, grid)
    ]


def pieces(roles: Mapping[str, str], grid: Grid, what: str, but: str | None = None) -> int:
    """Into how many pieces the roles cut x, y or w, without the axis `but`."""
    cut = [axis for axis, role in roles.items() if what in ROLES[role][2] and axis != but]
    return math.prod(grid.sizes[axis] for axis in cut)


def parameter_pieces(roles, grid: Grid, by_row: bool, but: str | None = None) -> int:
    roles = {axis: role for axis, role in roles.items() if by_row or role != "row"}
    return pieces(roles, grid, "w", but)


def divides(operator: Operator, roles: Mapping[str, str], grid: Grid) -> bool:
    def cut(*names):
        return math.prod(grid.sizes[axis] for axis, role in roles.items() if role in names)

    inside = operator.units_in or operator.width_in
    outside = operator.units_out or operator.width_out
    return (
        operator.sequences % cut("batch", "sharded") == 0
        and outside % cut("column", "width") == 0
        and inside % cut("row", "width") == 0
    )


def sent(operator: Operator, roles, grid: Grid, number_bytes: float) -> list[Message]:
    """The messages of a forward and a backward."""
    rows = operator.sequences * operator.tokens * number_bytes
    x, y = rows * operator.width_in, rows * operator.width_out
    found = []
    for axis, role in roles.items():
        of = {"axis": axis, "ranks": grid.sizes[axis]}
        for numbers, by_row in operator.parameters if operator.tied is None else ():
            w = numbers * number_bytes / parameter_pieces(roles, grid, by_row, axis)
            if role == "batch":
                found.append(Message(call="all_reduce", payload=w, what="gradients", **of))
            elif role == "sharded":
                gather = {"call": "all_gather", "times": 2, "what": "parameters"}
                found.append(Message(payload=w, **gather, **of))
                found.append(Message(call="reduce_scatter", payload=w, what="gradients", **of))
        act = {"call": "all_reduce", "what": "activations", **of}
        if role == "column" and operator.inputs:
            found.append(Message(payload=x / pieces(roles, grid, "x", axis), **act))
        if role == "column" and operator.kind == "head":  # the loss: the maximum, and the sum
            one = rows / pieces(roles, grid, "x", axis)
            found.append(Message(**act | {"what": "loss"}, payload=one, times=2))
        if role == "row":
            found.append(Message(payload=y / pieces(roles, grid, "y", axis), **act))
    return found


def states(operator: Operator, roles, grid: Grid, state_bytes: float) -> float:
    return sum(
        numbers * state_bytes / parameter_pieces(roles, grid, by_row)
        for numbers, by_row in operator.parameters
        if operator.tied is None
    )


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
