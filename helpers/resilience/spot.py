"""Train by a deadline on spot instances: cheap machines that the cloud takes back at any time.

Time passes in ticks. In each tick a **policy** chooses: a spot instance, an on-demand instance, or
neither. To start an instance costs some ticks without progress, to boot and to load the checkpoint.
A spot instance ends when the trace says so; then it saves, so that only the start is paid again.

Source: Wu et al. 2024, "Can't Be Late: Optimizing Spot Instance Savings under Deadlines" (NSDI):
`greedy` and `uniform_progress` follow its policies. `cheapest` knows the future: no policy is
cheaper.
"""

import json
import reprlib
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WAIT, SPOT, ON_DEMAND = "wait", "spot", "on demand"
# Derived from the traces of V100s on AWS, February to April 2023, in ticks of 195 s: the share
# of time with an instance, and the mean hours until it is taken away. The traces have no licence,
# so they are not part of the course: `download` reads them.
ZONES = {"us-west-2a": (0.88, 6.1), "us-east-1d": (0.45, 1.7)}
REPOSITORY = "https://raw.githubusercontent.com/skypilot-org/spot-traces/main/"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be done, in ticks.

    Attributes:
        work: of training.
        deadline: until when.
        start: ticks that a new instance needs before it trains.
    """

    work: int
    deadline: int
    start: int

    def __post_init__(self):
        if self.work < 1 or self.start < 0:
            raise ValueError("a job has at least one tick of work, and no negative start")
        if self.deadline < self.work + self.start:
            raise ValueError(
                f"{self.work} ticks of work and {self.start} to start do not fit into "
                f"{self.deadline}: no policy can keep this deadline"
            )


@dataclass(frozen=True, kw_only=True)
class Now:
    """What a policy knows at the beginning of a tick.

    Attributes:
        tick: from 0.
        done: ticks of work that are finished.
        spot: there is a spot instance to be had.
        using: WAIT, SPOT or ON_DEMAND: the instance that runs. A spot instance that was taken away
            is WAIT already.
        booting: ticks until the running instance trains.
        job: what is to be done.
    """

    tick: int
    done: int
    spot: bool
    using: str
    booting: int
    job: Job

    @property
    def last_call(self) -> bool:
        """One more tick without on demand, and a loss of spot could miss the deadline."""
        trains = self.using == SPOT and self.booting == 0
        after = self.job.work - self.done - trains + self.job.start
        return self.job.deadline - self.tick - 1 < after


Policy = Callable[[Now], str]


def on_demand(now: Now) -> str:
    """Never spot."""
    return ON_DEMAND


def greedy(now: Now) -> str:
    """Spot if there is one, else wait; on demand to the end, once the deadline forces it."""
    if now.using == ON_DEMAND or now.last_call:
        return ON_DEMAND
    return SPOT if now.spot else WAIT


def uniform_progress(now: Now) -> str:
    """Keep pace with work/deadline: without spot, on demand while behind, wait while ahead.

    It leaves an on-demand instance only when it is ahead by two starts, so that it does not pay for
    a start again and again.
    """
    pace = now.tick + (2 * now.job.start if now.using == ON_DEMAND else 0)
    ahead = now.done * now.job.deadline >= now.job.work * pace
    if now.last_call or (now.using == ON_DEMAND and not ahead):
        return ON_DEMAND
    if now.spot:
        return SPOT
    return WAIT if ahead else ON_DEMAND


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a job cost.

    Attributes:
        cost: dollars.
        ticks: by choice: WAIT, SPOT and ON_DEMAND.
        finished: the tick at which the work was done; None: the deadline was missed.
        starts: instances that were started.
        choices: of each tick, for a picture.
    """

    cost: float
    ticks: dict[str, int]
    finished: int | None
    starts: int
    choices: tuple[str, ...]


def run(policy: Policy, job: Job, trace: Sequence[bool], prices: dict[str, float]) -> Run:
    """Follow a policy until the work is done or the deadline has come.

    Args:
        trace: for each tick, whether there is a spot instance; at least `job.deadline` ticks.
        prices: SPOT and ON_DEMAND -> dollars a tick, also while an instance boots.

    Raises:
        ValueError: the trace is too short, or the policy chose spot where there is none.
    """
    if len(trace) < job.deadline:
        raise ValueError(f"a trace of {len(trace)} ticks is shorter than the deadline")
    using, booting, done, starts, choices = WAIT, 0, 0, 0, []
    for tick in range(job.deadline):
        if done == job.work:
            break
        spot = bool(trace[tick])
        if using == SPOT and not spot:
            using = WAIT
        now = Now(tick=tick, done=done, spot=spot, using=using, booting=booting, job=job)
        choice = policy(now)
        if choice not in (WAIT, SPOT, ON_DEMAND) or (choice == SPOT and not spot):
            raise ValueError(
                f"tick {tick}: the policy chose {reprlib.repr(choice)}, which is not to be had"
            )
        if choice != WAIT and choice != using:
            booting, starts = job.start, starts + 1
        using = choice
        choices.append(choice)
        if using != WAIT:
            done, booting = done + (booting == 0), max(booting - 1, 0)
    ticks = {kind: choices.count(kind) for kind in (WAIT, SPOT, ON_DEMAND)}
    return Run(
        cost=sum(prices[kind] * ticks[kind] for kind in (SPOT, ON_DEMAND)),
        ticks=ticks,
        finished=len(choices) if done == job.work else None,
        starts=starts,
        choices=tuple(choices),
    )


def cheapest(job: Job, trace: Sequence[bool], prices: dict[str, float]) -> float:
    """Return the least cost of any policy that keeps the deadline and knows the whole trace.

    Dynamic programming, from the deadline back. least[s][d]: the cost from this tick on with d
    ticks of work done, in state s: nothing runs, or an instance of a kind that has b ticks to boot.
    """
    boots = range(job.start + 1)
    states = [(WAIT, 0), *((kind, b) for kind in (SPOT, ON_DEMAND) for b in boots)]
    finished = np.full(job.work + 1, np.inf)
    finished[job.work] = 0.0
    later = dict.fromkeys(states, finished)
    for tick in reversed(range(job.deadline)):
        there = {ON_DEMAND: True, SPOT: bool(trace[tick])}

        def used(kind: str, boot: int, after=later, there=there) -> np.ndarray:
            """The cost if this tick is spent on an instance with so many ticks to boot."""
            if not there[kind]:
                return np.full(job.work + 1, np.inf)
            follows = after[kind, max(boot - 1, 0)]
            cost = prices[kind] + (follows if boot else np.append(follows[1:], np.inf))
            cost[job.work] = 0.0
            return cost

        fresh = [used(kind, job.start) for kind in there] + [later[WAIT, 0]]
        least = np.minimum.reduce(fresh)
        later = {
            (kind, b): least if kind == WAIT else np.minimum(least, used(kind, b))
            for kind, b in states
        }
    return float(later[WAIT, 0][0])


def drawn(share: float, life: float, ticks: int, seed: int) -> list[bool]:
    """Draw a trace: a Markov chain with this share of available ticks and this mean life.

    Args:
        share: of the ticks with a spot instance, in (0, 1).
        life: mean ticks until an instance is taken away.
    """
    if not 0 < share < 1 or life < max(1, share / (1 - share)) - 1e-9:
        raise ValueError(f"no chain of ticks has the share {share} and the mean life {life}")
    random = np.random.default_rng(seed)
    lose, gain = 1 / life, share / (1 - share) / life
    there, trace = bool(random.random() < share), []
    for chance in random.random(ticks):
        trace.append(there)
        there = bool(chance >= lose if there else chance < gain)
    return trace


def download(path: str, seconds: float = 10.0) -> tuple[float, list[bool]]:
    """Read a trace of skypilot-org/spot-traces, such as
    `availability/1-node/aws-02-15-2023/us-west-2a_v100_1.json`.

    Returns:
        Seconds of a tick, and for each tick whether there was an instance.

    Raises:
        OSError: no network.
    """
    with urllib.request.urlopen(REPOSITORY + path, timeout=seconds) as answer:
        return parse(answer.read())


def parse(text: str | bytes) -> tuple[float, list[bool]]:
    """Read a trace: {"metadata": {"gap_seconds": …}, "data": [instances, …]}."""
    found = json.loads(text)
    return float(found["metadata"]["gap_seconds"]), [count > 0 for count in found["data"]]
