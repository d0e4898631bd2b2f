"""A schedule as data: the order in which each rank computes its stages' micro-batches.

p  ranks of the pipeline      v  stages on each rank      S = p v  stages, in the model's order
m  micro-batches              F, B, I, W  the kinds of computation
"""

from dataclasses import dataclass, field

FORWARD = "F"  # the forward of a stage
BACKWARD = "B"  # its whole backward, which is I and then W in one piece
INPUT = "I"  # the gradient of the stage's input alone: the previous stage waits for it
WEIGHT = "W"  # the gradient of the stage's weights alone: only the optimizer waits for it
KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)

SEND = "SEND"
RECEIVE = "RECV"


class ScheduleError(ValueError):
    """A schedule cannot run, or a text is not a schedule. The message names the first reason."""


@dataclass(frozen=True, order=True)
class Action:
    """One computation: what is computed, for which stage, on which micro-batch.

    Attributes:
        kind: FORWARD, BACKWARD, INPUT or WEIGHT.
        stage: 0 … S-1, in the order of the model.
        micro: 0 … m-1.
    """

    kind: str
    stage: int
    micro: int

    def __str__(self):
        return f"{self.kind}{self.micro} of stage {self.stage}"


@dataclass(frozen=True, order=True)
class Message:
    """One half of a message between two ranks, as one of the two ranks sees it.

    The sender and the receiver have the same `source`, `target` and `micro`.

    Attributes:
        kind: SEND, or RECEIVE: the buffer is posted here, and is full before its computation runs.
        source, target: the stages. Activations go from s to s + 1, gradients from s to s - 1.
        micro: the micro-batch.
        peer: the other rank.
    """

    kind: str
    source: int
    target: int
    micro: int
    peer: int

    @property
    def forward(self) -> bool:
        """Whether the message carries an activation. Otherwise it carries its gradient."""
        return self.target > self.source

    def __str__(self):
        what = "activation" if self.forward else "gradient"
        verb, side = ("sends", "to") if self.kind == SEND else ("receives", "from")
        return f"{verb} the {what} of micro-batch {self.micro} {side} rank {self.peer}"


@dataclass(frozen=True)
class Schedule:
    """For each rank, the order of its computations.

    Attributes:
        name: "1F1B", for example.
        placement: the rank of each stage, by stage.
        micro_batches: m.
        orders: for each rank, its Actions in order.

    Raises:
        ScheduleError: the sizes contradict each other. Whether it can run, `check` answers.
    """

    name: str
    placement: tuple[int, ...]
    micro_batches: int
    orders: tuple[tuple[Action, ...], ...] = field(repr=False)

    def __post_init__(self):
        if self.micro_batches < 1:
            raise ScheduleError(f"micro_batches is {self.micro_batches}; there must be one or more")
        if set(self.placement) != set(range(len(self.orders))):
            raise ScheduleError(
                f"the stages are on ranks {sorted(set(self.placement))}, but there are "
                f"{len(self.orders)} orders: each rank needs a stage and an order"
            )

    @property
    def ranks(self) -> int:
        """p."""
        return len(self.orders)

    @property
    def stages(self) -> int:
        """S."""
        return len(self.placement)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages on this rank, in the order of the model."""
        return tuple(stage for stage, place in enumerate(self.placement) if place == rank)

    @property
    def split(self) -> bool:
        """Whether some backward has two parts, I and W."""
        return any(action.kind == INPUT for order in self.orders for action in order)


def enough(**sizes: int):
    """Raise ScheduleError for the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ScheduleError(f"{name} is {size}; there must be one or more")


def straight(ranks: int, chunks: int = 1) -> tuple[int, ...]:
    """Stage s on rank s modulo p: each chunk of p stages goes once through all ranks."""
    return tuple(range(ranks)) * chunks


def folded(ranks: int) -> tuple[int, ...]:
    """Two stages a rank, in a V: down the ranks and up again. Rank 0 has the first and the last."""
    return (*range(ranks), *reversed(range(ranks)))


def inputs(action: Action, stages: int) -> list[tuple[Action, ...]]:
    """What must be done before: for each need, the Actions of which one must have been done.

    A gradient comes from the next stage's B or its I, whichever its schedule has.
    """
    stage, micro = action.stage, action.micro
    if action.kind == FORWARD:
        return [(Action(FORWARD, stage - 1, micro),)] if stage else []
    if action.kind == WEIGHT:
        return [(Action(INPUT, stage, micro),)]
    needs = [(Action(FORWARD, stage, micro),)]
    if stage < stages - 1:
        needs.append((Action(BACKWARD, stage + 1, micro), Action(INPUT, stage + 1, micro)))
    return needs
