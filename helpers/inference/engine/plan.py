"""What a scheduler sees, and what it decides: plain data, without a model.

A **step** is one forward of the model. Before each step, a scheduler looks at the `Queues` and
returns a `Plan`: which requests the step computes, and how many tokens of each.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a request is.

    Attributes:
        number: the request's number.
        prompt: the tokens of its prompt.
        known: the tokens of its prompt, and those generated so far.
        cached: how many of the known tokens have keys and values in the cache.
        limit: the most tokens that it can ever have in the cache.
        blocks: the cache's blocks that this request alone holds.
    """

    number: int
    prompt: int
    known: int
    cached: int
    limit: int
    blocks: int = 0

    @property
    def missing(self) -> int:
        """The known tokens that are not cached yet. Computing the last one gives a new token."""
        return self.known - self.cached

    @property
    def decodes(self) -> bool:
        """Whether only the newest generated token is missing."""
        return self.missing == 1 and self.known > self.prompt


@dataclass(frozen=True, kw_only=True)
class Queues:
    """What a scheduler sees before a step.

    Attributes:
        waiting: the requests that hold no blocks, in order of arrival.
        running: the requests that hold blocks, in order of arrival.
        free: the free blocks.
        blocks: all blocks of the cache.
        block_size: tokens in a block; 0 if a sequence of any length needs no blocks.
        ended: the requests that ended since `running` was last empty.
        reserved: the blocks that the last plan reserved; 0 if `running` is empty.
    """

    waiting: tuple[Progress, ...] = ()
    running: tuple[Progress, ...] = ()
    free: int
    blocks: int
    block_size: int
    ended: int = 0
    reserved: int = 0

    def blocks_for(self, tokens: int) -> int:
        """Count the blocks that this many tokens of one sequence fill."""
        return -(-tokens // self.block_size) if self.block_size else 0

    def needs(self, progress: Progress, tokens: int) -> int:
        """Count the free blocks that a request takes if the step computes this many tokens."""
        after = self.blocks_for(progress.cached + tokens)
        return after - self.blocks_for(progress.cached)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one step does. First the preempted requests give back their blocks.

    Attributes:
        tokens: how many tokens of each request the step computes, by the request's number. A
            waiting request in it starts to run.
        preempted: running requests that give back all their blocks and wait again. Later their
            tokens, generated ones too, are computed again.
        padding: rows of requests that have ended, which the step computes for nothing.
        reserved: blocks that no other request may use, whether or not they hold tokens.
    """

    tokens: Mapping[int, int] = field(default_factory=dict)
    preempted: tuple[int, ...] = ()
    padding: int = 0
    reserved: int = 0


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step computes, in tokens.

    Attributes:
        prefilled: tokens of prompts, and those computed again after a preemption.
        decoded: the newest tokens of requests; each gives the next one.
        padding: tokens of requests that have ended.
        read: the cached tokens that attention reads, summed over the requests.
    """

    prefilled: int = 0
    decoded: int = 0
    padding: int = 0
    read: int = 0

    @property
    def tokens(self) -> int:
        """All tokens that pass through the model."""
        return self.prefilled + self.decoded + self.padding


def work_of(pieces: Iterable[tuple[Progress, int]], padding: int = 0) -> Work:
    """Count the work of a step that computes this many tokens of each request."""
    pieces = list(pieces)
    decoded = sum(progress.decodes for progress, _ in pieces)
    return Work(
        prefilled=sum(count for _, count in pieces) - decoded,
        decoded=decoded,
        padding=padding,
        read=sum(progress.cached + count for progress, count in pieces),
    )


def check_plan(plan: Plan, queues: Queues):
    """Check that a plan can be carried out.

    Raises:
        ValueError: the plan names a request that is not there, computes more tokens than are
            missing or none, preempts what it computes or what does not run, preempts but computes
            nothing, or needs more blocks than are free.
    """
    running = {progress.number: progress for progress in queues.running}
    own = running | {progress.number: progress for progress in queues.waiting}
    if unknown := (set(plan.tokens) | set(plan.preempted)) - set(own):
        raise ValueError(f"the plan names the requests {sorted(unknown)}, which are not in a queue")
    if idle := set(plan.preempted) - set(running):
        raise ValueError(f"the plan preempts the requests {sorted(idle)}, which do not run")
    if both := set(plan.preempted) & set(plan.tokens):
        raise ValueError(f"the plan preempts the requests {sorted(both)} and computes them too")
    if len(set(plan.preempted)) != len(plan.preempted):
        raise ValueError(f"the plan preempts a request twice: {plan.preempted}")
    if plan.preempted and not plan.tokens:
        raise ValueError(f"the plan preempts the requests {plan.preempted} and computes nothing")
    for number, count in plan.tokens.items():
        if not 1 <= count <= own[number].missing:
            raise ValueError(
                f"the plan computes {count} tokens of request {number}, which lacks "
                f"{own[number].missing}; compute at least 1 and at most these"
            )
    freed = sum(running[number].blocks for number in plan.preempted)
    needed = sum(queues.needs(own[number], count) for number, count in plan.tokens.items())
    if needed > queues.free + freed:
        raise ValueError(
            f"the plan needs {needed} blocks, but only {queues.free} are free and preemption "
            f"frees {freed}; compute fewer tokens or preempt more requests"
        )
