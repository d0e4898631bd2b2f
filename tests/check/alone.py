"""A mistake in one case of an exercise alone: does the check find it, and where?"""

from collections.abc import Callable
from dataclasses import replace

from helpers.check import elsewhere
from tests.check.asked import numbers


def found_alone(check: Callable, right: Callable, wrong: Callable) -> list[str]:
    """What the check finds where the function is wrong in one case alone, for each case in turn."""
    found, kept = [], {}
    while True:
        place = OneWrong(right, wrong, len(found), kept)
        with elsewhere.at(place):
            verdict = check(place.solve)
        if verdict:
            assert place.number == len(found) - 1
            return found
        assert verdict.status == "wrong", verdict
        found.append(verdict.finding)


def names(findings: list[str]) -> list[str]:
    """The words before each finding: they name the case."""
    return [finding.split(": ")[0] for finding in findings]


class OneWrong(elsewhere.Here):
    """Calls the wrong function in one case, and the right one in all others.

    Args:
        at: number of that case.
        kept: what ranks returned in earlier cases, by number. The right function runs once.
    """

    def __init__(self, right, wrong, at: int, kept: dict):
        self.right, self.wrong, self.at, self.kept, self.number = right, wrong, at, kept, -1

        def solve(*given, **named):  # no method: a copy of it would have a number of its own
            return (wrong if self.number == at else right)(*given, **named)

        self.solve = solve

    def call(self, fn, arguments):
        self.number += 1
        return super().call(fn, arguments)

    def launch(self, run, workers, fn, kwargs, timeout):
        self.number += 1
        if self.number == self.at:
            return super().launch(run, workers, self.wrong, kwargs, timeout)
        if self.number not in self.kept:
            made = super().launch(run, workers, self.right, kwargs, timeout)
            self.kept[self.number] = made
        return self.kept[self.number]


def found_on_each_rank(check: Callable, right: Callable, wrong: Callable) -> list[str]:
    """What the check finds where one rank alone has wrong results: each rank of each case in turn.

    The ranks run twice for each case, with one function and with the other, and the check gets the
    right results with one wrong one among them. A rank without numbers has none that are wrong.
    """
    found, kept = [], {}
    while True:
        place = OneRankWrong(right, wrong, len(found), kept)
        with elsewhere.at(place):
            verdict = check(right)
        if verdict:
            assert place.ranks == len(found), f"nothing was found after {found[-1:]}"
            return found
        assert verdict.status == "wrong", verdict
        found.append(verdict.finding)


class OneRankWrong(elsewhere.Here):
    """Gives the results of the right function, but for one rank of one case.

    Args:
        at: number of that rank, counted through all cases, without ranks that have no numbers.
        kept: what ranks returned in earlier cases, by number of the case.

    Attributes:
        ranks: with numbers, of all cases so far.
    """

    def __init__(self, right, wrong, at: int, kept: dict):
        self.functions, self.at, self.kept = (right, wrong), at, kept
        self.cases, self.ranks = 0, 0

    def launch(self, run, workers, fn, kwargs, timeout):
        if self.cases not in self.kept:
            launch = super().launch
            self.kept[self.cases] = [
                launch(run, workers, one, kwargs, timeout) for one in self.functions
            ]
        right, wrong = self.kept[self.cases]
        apart = [rank for rank in range(workers) if numbers(right[rank]) != numbers(wrong[rank])]
        results = list(right)
        if 0 <= self.at - self.ranks < len(apart):
            rank = apart[self.at - self.ranks]
            results[rank] = wrong[rank]
        self.cases, self.ranks = self.cases + 1, self.ranks + len(apart)
        return replace(right, results=results)
