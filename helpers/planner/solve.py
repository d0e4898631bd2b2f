"""Choose a strategy for each node: reduce the problem, prove an optimum, or improve a choice."""

import math
import time
from dataclasses import dataclass

from helpers.planner.problem import Problem
from helpers.planner.program import best
from helpers.planner.reduce import Reduced
from helpers.planner.search import Search

LARGE = 100_000  # numbers in the edges of a problem that is not solved as a whole
REDUCING = 0.4  # the share of the time after which no rule is tried any more
PROOF = 0.8  # of what is left, for the program; the rest improves its choice
START = 0.3  # of what is left then, for a first choice and a bound


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy for each node.

    Attributes:
        chosen: each node's strategy.
        cost: of the choice.
        peak: the most memory at any time.
        bound: no choice costs less. The choice is optimal where it equals `cost`.
    """

    chosen: list[int]
    cost: float
    peak: float
    bound: float


def solve(problem: Problem, seconds: float = 600.0) -> Choice:
    """Find the cheapest choice within the memory limit.

    Args:
        seconds: to stop after, with the best choice so far and its bound.

    Raises:
        NoPlan: no choice keeps the limit.
        TimeoutError: the time was too short to find a choice.
    """
    now = time.monotonic()
    until = now + seconds
    reduced = Reduced(problem, now + REDUCING * seconds)
    places, least = best(reduced, PROOF * (until - time.monotonic()), LARGE)
    bound = known(problem, reduced.constant + least)

    chosen = None if places is None else listed(reduced, places)
    if chosen is None or not problem.holds(chosen) or not near(problem.cost(chosen), bound):
        search = Search(reduced, places, START * (until - time.monotonic()))
        bound = max(bound, known(problem, reduced.constant + search.bound))
        if not search.run(until):
            raise TimeoutError(f"no choice found in {seconds:.0f} seconds: allow more time")
        chosen = listed(reduced, search.chosen)
    cost = problem.cost(chosen)
    return Choice(
        chosen=chosen,
        cost=cost,
        peak=problem.peak(chosen),
        bound=cost if near(cost, bound) else bound,
    )


def known(problem: Problem, bound: float) -> float:
    """The bound, up to the next whole number if all costs are whole."""
    return math.ceil(bound - 1e-6 - 1e-9 * abs(bound)) if problem.whole else bound


def near(cost: float, bound: float) -> bool:
    """Whether the cost is the bound, or below it by rounding."""
    return cost <= bound + 1e-9 * abs(bound)


def listed(reduced: Reduced, places: dict[int, int]) -> list[int]:
    found = reduced.whole(places)
    return [found[node] for node in sorted(found)]
