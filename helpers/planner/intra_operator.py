"""The intra-operator plan: a strategy for each operator, with the least communication.

Source: Zheng et al. 2022 (Alpa), arXiv:2201.12023, section 4.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from helpers.planner.problem import FORBIDDEN, Problem
from helpers.planner.solve import solve
from helpers.planner.strategies import Grid, Operator, Strategy, resharding, strategies


@dataclass(frozen=True, kw_only=True)
class Intra:
    """A strategy for each operator.

    Attributes:
        chosen: operator's name -> strategy.
        seconds: of all messages of a forward and a backward.
    """

    chosen: dict[str, Strategy]
    seconds: float

    @property
    def states(self) -> float:
        """Bytes of parameters, gradients and the optimizer on each device."""
        return sum(one.states for one in self.chosen.values())

    @property
    def kept(self) -> float:
        """Bytes of activations on each device, for one micro-batch."""
        return sum(one.kept for one in self.chosen.values())

    @property
    def roles(self) -> dict[str, str]:
        """operator -> its roles, by axis."""
        return {name: " ".join(one.roles.values()) for name, one in self.chosen.items()}


def intra_operator(
    operators: Sequence[Operator],
    grid: Grid,
    *,
    memory: float | None = None,
    micro_batches: int = 1,
    number_bytes: float = 2,
    **ways,
) -> Intra:
    """Choose the strategies with the least seconds of communication that fit into memory.

    Args:
        operators: in the order of the forward.
        memory: bytes of a device; None: enough.
        micro_batches: of a step. Replicated gradients are summed once, so a micro-batch pays a
            part of their time.
        number_bytes, ways: as for `strategies`.

    Raises:
        NoPlan: nothing fits.
    """
    choices = [strategies(one, grid, number_bytes=number_bytes, **ways) for one in operators]
    sizes = {"micro_batches": micro_batches, "number_bytes": number_bytes}
    problem = as_problem(operators, choices, grid, **sizes)
    found = solve(problem)  # without a limit: a chain of operators needs no integer program
    if memory is not None and found.peak > memory:
        found = solve(replace(problem, limit=memory))
    chosen = [ways[one] for ways, one in zip(choices, found.chosen, strict=True)]
    return Intra(
        chosen={one.name: way for one, way in zip(operators, chosen, strict=True)},
        seconds=found.cost,
    )


def as_problem(
    operators: Sequence[Operator],
    choices: Sequence[Sequence[Strategy]],
    grid: Grid,
    *,
    micro_batches: int = 1,
    number_bytes: float = 2,
) -> Problem:
    """Write the choice of strategies as a Problem. All tensors live at the same time."""

    def seconds(message):
        shared = micro_batches if message.what == "gradients" else 1
        return grid.seconds(message) / shared

    edges = []
    for here, one in enumerate(operators):
        for there in one.inputs:
            size = one.sequences * one.tokens * operators[there].width_out * number_bytes
            costs = [
                sum(map(seconds, resharding(size, a.lies(1), b.lies(0), grid)))
                for a in choices[there]
                for b in choices[here]
            ]
            edges.append(((there, here), costs))
        if one.tied is not None:
            costs = [
                0 if same_parts(a, b) else FORBIDDEN
                for a in choices[one.tied]
                for b in choices[here]
            ]
            edges.append(((one.tied, here), costs))
    return Problem(
        costs=[[sum(map(seconds, way.messages)) for way in ways] for ways in choices],
        edges=edges,
        usages=[[way.states + way.kept for way in ways] for ways in choices],
        intervals=[(0, 1)] * len(operators),
    )


TRANSPOSED = {"row": "column", "column": "row"}


def same_parts(embedding: Strategy, head: Strategy) -> bool:
    """Whether both cut one matrix alike; the head uses its transpose."""
    roles = {axis: TRANSPOSED.get(role, role) for axis, role in embedding.roles.items()}
    return roles == dict(head.roles)
