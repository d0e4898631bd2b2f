"""Three ways to share a model among requests. A policy looks at the queues and plans one step.

All three serve in order of arrival: a request never starts before an earlier one that still waits.
So no request waits for ever.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from helpers.inference.engine.plan import Plan, Queues


class Policy(Protocol):
    """Any object with this method can schedule."""

    def plan(self, queues: Queues) -> Plan:
        """Decide what the next step computes. An empty plan waits for the next arrival."""


@dataclass(frozen=True)
class Static:
    """Static batches: requests start together, and the next batch starts when the longest ends.

    A batch is a tensor of fixed shape. So each of its requests reserves blocks for as many tokens
    as the longest of them can have. And the rows of requests that have ended are computed on,
    for nothing, until the batch ends (Yu et al. 2022, section 3, challenge C1).

    Args:
        size: the most requests in a batch. A batch starts at once with those that wait, if fewer.
        padding: False spares the rows of requests that have ended.
    """

    size: int
    padding: bool = True

    def __post_init__(self):
        check_positive("size", self.size)

    def plan(self, queues: Queues) -> Plan:
        if queues.running:
            return Plan(
                tokens={progress.number: progress.missing for progress in queues.running},
                padding=queues.ended if self.padding else 0,
                reserved=queues.reserved,
            )
        batch, longest = [], 0
        for progress in queues.waiting[: self.size]:
            rows = max(longest, queues.blocks_for(progress.limit))
            if (len(batch) + 1) * rows > queues.free:
                break
            batch.append(progress)
            longest = rows
        tokens = {progress.number: progress.missing for progress in batch}
        return Plan(tokens=tokens, reserved=len(batch) * longest)


@dataclass(frozen=True)
class Continuous:
    """Continuous batching: requests join and leave at every step.

    A prompt is prefilled whole, in one step, while the other requests decode (Yu et al. 2022,
    section 3: iteration-level scheduling). Blocks are taken as they are needed. If they run out,
    the latest request gives its blocks back and is computed again later (Kwon et al. 2023, section
    4.5: recomputation).

    Args:
        most: the most requests in a step.
    """

    most: int

    def __post_init__(self):
        check_positive("most", self.most)

    def plan(self, queues: Queues) -> Plan:
        return share_step(queues, self.most, math.inf)


@dataclass(frozen=True)
class Chunked:
    """Continuous batching in which a long prompt is prefilled in pieces, over several steps.

    A step computes at most `budget` tokens: one for each request that decodes, and pieces of
    prompts with the rest. So no prompt delays the other requests' next tokens for long (Agrawal et
    al. 2023, section 4).

    Args:
        most: the most requests in a step.
        budget: the most tokens in a step, at least `most`.
    """

    most: int
    budget: int

    def __post_init__(self):
        check_positive("most", self.most)
        if self.budget < self.most:
            raise ValueError(
                f"a budget of {self.budget} tokens, but {self.most} requests may decode in a step; "
                "give at least as many tokens"
            )

    def plan(self, queues: Queues) -> Plan:
        return share_step(queues, self.most, self.budget)


def share_step(queues: Queues, most: int, budget: float) -> Plan:
    """Plan a step of running and waiting requests with at most `budget` tokens.

    The running requests come first, in order of arrival. The latest of them is preempted while
    blocks are missing. If none is, waiting requests start, as long as the whole prompt fits and
    every running request could still get one more block.
    """
    tokens, preempted = {}, []
    alive, free = list(queues.running), queues.free
    left = budget - sum(progress.decodes for progress in alive)  # for prompts
    for progress in queues.running:
        count = 1 if progress.decodes else int(min(progress.missing, left))
        needed = queues.needs(progress, count)
        while needed > free and progress in alive:
            latest = alive.pop()
            preempted.append(latest.number)
            free += latest.blocks
        if progress not in alive:
            break  # all later ones are preempted, too
        if count:
            tokens[progress.number] = count
            free -= needed
            left -= 0 if progress.decodes else count
    if preempted:
        return Plan(tokens=tokens, preempted=tuple(preempted))
    running = len(alive)
    for progress in queues.waiting:
        spare = running if running else 0
        whole = queues.blocks_for(progress.known)
        if running >= most or left < 1 or whole + spare > free:
            break
        tokens[progress.number] = count = int(min(progress.missing, left))
        left -= count
        free -= whole
        running += 1
    return Plan(tokens=tokens)


def check_positive(name: str, value: int):
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
