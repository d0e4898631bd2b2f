"""Exercises whose answer is a number: the mistakes that any formula allows, and their hints."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from helpers.check.answers import as_python, is_number, oddity, same, short
from helpers.check.exercise import Case, Edit, Exercise
from helpers.check.verdict import NotRight


@dataclass(frozen=True, kw_only=True)
class Number(Exercise):
    """An exercise whose answer is one number; or several, if each has a facet.

    Each mistake is `change(b, g)`: from the right answer b and the arguments by name, `g.layers`,
    to the wrong answer. `g(layers=1)` is the right answer with other arguments. It may also be a
    function with the arguments of the reference, if it does not have two.

    Attributes:
        unit: of the answer, "bytes".
        say: words for the finding, `say(found, right, *arguments)`.
    """

    unit: str = ""

    def noun(self):
        return f"numbers of {self.unit}" if self.unit else super().noun()

    def made(self, mistake):
        if isinstance(mistake, Edit) or len(inspect.signature(mistake).parameters) != 2:
            return super().made(mistake)
        return lambda *given: mistake(self.right(*given), Given(self.right, given))

    def instead(self, name: str, value: Callable) -> Callable:
        """Return the function that takes value(g) for an argument."""
        return self.made(lambda b, g: g(**{name: value(g)}))

    def quantities(self, case: Case) -> dict[str, float]:
        """Return the arguments that are numbers, by name."""
        names = inspect.signature(self.right).parameters
        given = zip(names, case.arguments, strict=False)
        return {name: value for name, value in given if is_number(value)}

    def fixed(self, cases):
        """Also yield mistakes that take a number, or another argument, in an argument's place."""
        yield from super().fixed(cases)
        given = [Number.quantities(self, case) for case in cases]
        names = [name for name in given[0] if all(name in one for one in given)]
        for name in names:
            values = {one[name] for one in given}
            for value in sorted({1, *values, *(SIZES if values & SIZES else ())}):
                yield (
                    self.instead(name, lambda g, value=value: value),
                    f"This is right where `{name}` is {value}, and for each `{name}` you return "
                    "the same. It is an argument.",
                )
        for name, other in permutations(names, 2):
            yield (
                self.instead(name, lambda g, other=other: getattr(g, other)),
                f"That is right with `{other}` in the place of `{name}`.",
            )

    def complaint(self, facet, found, right, case):
        if not is_number(right):
            return super().complaint(facet, found, right, case)
        if not is_number(found):
            of = "" if self.unit.startswith("as ") else "of "
            return NotRight(f"returned {short(found)}", f"Return one number {of}{self.unit}.")
        found = as_python(found)
        if self.say:
            return NotRight(self.say(found, right, *case.arguments))
        what = self.unit if facet == "returned" else f"{self.unit} as {facet}".strip()
        return NotRight(f"you said {found:,.15g} {what}; it is {right:,}")

    def hint(self, found, cases, facet, general):
        general = general or self.factor(found, cases, facet)
        general = general or self.where_wrong(found, cases, facet)
        return super().hint(found, cases, facet, general)

    def where_wrong(self, found: list[dict], cases: Sequence[Case], facet: str) -> str:
        """Name a choice, as recompute="full", with which alone the answers are wrong."""
        right = [
            same(trace.get(facet), self.expected(case).get(facet), self.close)
            for trace, case in zip(found, cases, strict=False)
        ]
        given = [self.choices(case) for case in cases[: len(right)]]
        for name, value in dict.fromkeys((name, one[name]) for one in given for name in one):
            if [one.get(name) != value for one in given] == right:
                return f"It is wrong with {name} {value} alone, and right elsewhere. What is added?"
        return ""

    def choices(self, case: Case) -> dict[str, str]:
        """Return the arguments that are texts, by name."""
        given = zip(inspect.signature(self.right).parameters, case.arguments, strict=False)
        return {name: value for name, value in given if isinstance(value, str)}

    def factor(self, found: list[dict], cases: Sequence[Case], facet: str) -> str:
        """Name what the right answer is multiplied with in every case: numbers, arguments."""
        pairs = [
            (trace[facet] / right, self.quantities(case))
            for trace, case in zip(found, cases, strict=False)
            if is_number(trace.get(facet))
            and not oddity(trace[facet])
            and is_number(right := self.expected(case).get(facet))
            and right
        ]
        if len(pairs) < 2 or not all(0 < abs(ratio) < math.inf for ratio, _ in pairs):
            return ""
        near = max(1e-9, 2 * self.close)
        if all(math.isclose(ratio, 1, rel_tol=near) for ratio, _ in pairs):
            return ""  # wrong only where the answer is 0, or in another value
        if all(math.isclose(ratio, pairs[0][0], rel_tol=near) for ratio, _ in pairs):
            units = [name for name, size in UNITS.items() if math.isclose(size, pairs[0][0])]
            if units and self.unit == "bytes":
                return f"Return bytes, not {units[0]}."
            return f"In every case that is {pairs[0][0]:.4g} times the answer."
        names = [name for name in pairs[0][1] if all(name in given for _, given in pairs)]
        powers = [((name, power),) for power in (1, -1) for name in names]
        for factors in [*powers, *(one + two for one, two in combinations(powers, 2))]:
            rests = [
                ratio / math.prod(float(given[name] or 1) ** power for name, power in factors)
                for ratio, given in pairs
            ]
            if all(math.isclose(rest, rests[0], rel_tol=near) for rest in rests):
                words = {1: "too much", -1: "missing"}
                told = " and ".join(f"a factor `{name}` is {words[way]}" for name, way in factors)
                beside = "" if math.isclose(rests[0], 1, rel_tol=near) else ", beside a constant"
                return f"In every case, {told}{beside}. Why?"
        return ""


UNITS = {"bits": 8, "kB": 1e-3, "MB": 1e-6, "GB": 1e-9, "MiB": 2**-20, "GiB": 2**-30}
SIZES = {1, 2, 4, 8}  # bytes of a number


class Given:
    """The arguments of a case by name; a call returns the right answer with other arguments."""

    def __init__(self, right: Callable, given: tuple):
        self.__dict__.update(zip(inspect.signature(right).parameters, given, strict=False))
        self._right = right

    def __call__(self, **changes):
        given = {name: value for name, value in vars(self).items() if name != "_right"}
        return self._right(**{**given, **changes})
