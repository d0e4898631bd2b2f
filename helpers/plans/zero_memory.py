"""Bytes of model states on one rank, by ZeRO stage; what fits; the moments of sharded training.

P  parameters        N  ranks        k  bytes of optimizer state for one parameter

    stage 0    2 P         + 2 P      + k P        every rank has everything
    stage 1    2 P         + 2 P      + k P / N    optimizer state is sharded
    stage 2    2 P         + 2 P / N  + k P / N    and gradients
    stage 3    2 P / N     + 2 P / N  + k P / N    and parameters

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", arXiv:1910.02054, sections 3.1 and 5. The paper counts Adam in mixed precision: fp16
parameters and gradients, and k = 12 bytes for an fp32 copy of the parameter and two moments.
It leaves out activations, and the parameters that stage 3 gathers for the layer at work.

`moments` counts those, for FSDP2 (`torch.distributed.fsdp.fully_shard`). A gather fills a buffer
and is then copied into the parameters. In the backward, the gather of the next unit starts before
it is needed, and the gradients of a unit are copied into a buffer for the reduce-scatter, and
freed. gloo copies this buffer once more (measured). Without that copy, the moment before has the
most: gradients and buffer, without the result. It is freed when the next unit needs its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class States:
    """Bytes by kind: of one parameter, or of all the model states on one rank.

    Attributes:
        parameters: that forward and backward use.
        gradients: one for each parameter.
        optimizer: moments, and the fp32 copy of the parameters if they are 16-bit.

    Raises:
        ValueError: a number is negative.
    """

    parameters: float
    gradients: float
    optimizer: float

    def __post_init__(self):
        if not min(self.parameters, self.gradients, self.optimizer) >= 0:
            raise ValueError(f"bytes are 0 or more, not {self}")

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    def by_kind(self) -> dict[str, float]:
        """{kind: bytes}, as the drawings of `helpers.plots.memory` read them."""
        return dict(vars(self))


MIXED = States(parameters=2, gradients=2, optimizer=12)  # fp32 copy, momentum, variance: 4 each
FP32 = States(parameters=4, gradients=4, optimizer=8)  # momentum, variance


def zero_memory(params: float, world: int, stage: int, *, each: States = MIXED) -> States:
    """Bytes of model states on one rank, by kind.

    A rank holds an equal share of whatever the stage shards. A real shard is padded: pass
    `padded(params, world)` to count the padding, unit by unit.

    Args:
        params: P, the parameters of the model, or of one unit.
        world: N, the ranks that share the states.
        stage: 0 (data parallel, nothing is sharded), 1, 2 or 3.
        each: bytes of one parameter's states, MIXED or FP32, or a recipe of your own.

    Raises:
        ValueError: no such stage, fewer than one rank, or a negative number of parameters.
    """
    if not params >= 0:
        raise ValueError(f"a model has 0 or more parameters, not {params}")
    shard, whole = params / ranks_of(world), params
    sharded = stage_of(stage)
    return States(
        parameters=each.parameters * (shard if sharded >= 3 else whole),
        gradients=each.gradients * (shard if sharded >= 2 else whole),
        optimizer=each.optimizer * (shard if sharded >= 1 else whole),
    )


def padded(params: int, world: int) -> int:
    """The smallest multiple of `world` that has room for `params` numbers."""
    return -(-params // ranks_of(world)) * world


def largest_model(
    memory: float, world: int, stage: int, *, each: States = MIXED, reserved: float = 0.0
) -> float:
    """The largest number of parameters whose states fit on one rank.

    Args:
        memory: bytes of one GPU.
        world, stage, each: as `zero_memory` has them.
        reserved: bytes of one GPU that the model states may not use: activations, the layer
            that stage 3 has gathered, buffers of the library. The paper's table reserves none.

    Raises:
        ValueError: as `zero_memory`; or the states take no bytes, so any model fits.
    """
    of_one = zero_memory(1, world, stage, each=each).total
    if not of_one:
        raise ValueError("states of 0 bytes set no limit to the model's size")
    return max(0.0, memory - reserved) / of_one


def largest_models(
    memory: float, worlds: Iterable[int], *, stages: Iterable[int] = STAGES, **options
) -> dict[str, dict[int, float]]:
    """{"stage 1": {ranks: parameters}}: the chart `helpers.plots.memory` draws it.

    Args:
        memory, options: as `largest_model` has them.
    """
    worlds = list(worlds)
    return {
        f"stage {stage}": {n: largest_model(memory, n, stage, **options) for n in worlds}
        for stage in stages
    }


def stage_of(stage: int) -> int:
    if stage not in STAGES or isinstance(stage, bool):
        raise ValueError(f"ZeRO has the stages 0 (none), 1, 2 and 3, not {stage!r}")
    return stage


def ranks_of(world: int) -> int:
    if not world >= 1:
        raise ValueError(f"a world has at least one rank, not {world}")
    return world


@dataclass(frozen=True)
class Moment:
    """The bytes that one rank holds at one moment of a step, by kind.

    Attributes:
        name: what happens: "forward of unit 2", "reduce of unit 0", …
        states: the shards of parameters and optimizer state, and of the gradients so far.
        gathered: whole parameters, of units in use.
        fetched: the buffer of a gather.
        gradients: whole gradients of one unit.
        sending: the buffer of a reduce-scatter; while it runs, also its result and gloo's copy.
    """

    name: str
    states: float
    gathered: float = 0.0
    fetched: float = 0.0
    gradients: float = 0.0
    sending: float = 0.0

    @property
    def total(self) -> float:
        """All kinds together, without activations."""
        return self.states + self.gathered + self.fetched + self.gradients + self.sending


def moments(
    units: Sequence[float],
    ranks: int,
    optimizer: float = 2.0,
    *,
    root: float = 0.0,
    tied: bool = False,
) -> list[Moment]:
    """List the moments of one step, in order, without activations.

    Every unit is freed after its forward. Gradients start at none. The root stays gathered from
    the first forward to the end of the backward. The head's gradient comes first, and waits for
    the embedding's. If the two are tied, autograd adds them: three gradients at one time.

    Args:
        units: bytes of each unit's parameters, in the order of the forward.
        ranks: N.
        optimizer: bytes of optimizer state for each byte of parameters: 2 for Adam's two moments.
        root: bytes of the parameters outside of the units: embedding and head.
        tied: the head is the embedding; else each is a half of the root.

    Raises:
        ValueError: no units, or fewer than 2 ranks: then nothing is gathered.
    """
    if not units or ranks < 2:
        raise ValueError(f"{len(units)} units on {ranks} ranks: name a unit, and at least 2 ranks")
    own = (1 + optimizer) * (sum(units) + root) / ranks
    found, before, waiting = [], 0.0, root if tied else root / 2
    for k, size in enumerate(units):
        # the buffer of the unit before is freed when the next buffer has been filled
        for what in ("gather", "forward"):
            found.append(Moment(f"{what} of unit {k}", own, gathered=size + root, fetched=size))
    for k in reversed(range(len(units))):
        size, following = units[k], units[k - 1] if k else 0.0
        both = {"states": own, "fetched": following}
        held = {"gathered": size + root, "gradients": size + waiting, "sending": before}
        found.append(Moment(f"backward of unit {k}", **held, **both))
        sent = {"gathered": root, "gradients": waiting, "sending": 2 * size + size / ranks}
        found.append(Moment(f"reduce of unit {k}", **sent, **both))
        own, before = own + size / ranks, size  # with the shards of the gradients so far
    if root:
        sums = {"gradients": 3 * root if tied else root, "sending": before}
        found.append(Moment("backward of the root", own, gathered=root, **sums))
        found.append(Moment("reduce of the root", own, sending=2 * root + root / ranks))
    return found


def peak(units: Sequence[float], ranks: int, optimizer: float = 2.0, **root) -> Moment:
    """Return the moment with the most bytes; the first of several. `root` is as for `moments`."""
    return max(moments(units, ranks, optimizer, **root), key=lambda moment: moment.total)
