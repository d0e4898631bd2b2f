"""Exercises as data: a reference, its cases, and the usual mistakes, each with its hint.

An answer is wrong if the function leaves something else behind than the reference. Then the check
runs the mistakes on the same inputs. It gives the hint of the mistake that leaves the same behind
in every case; if none does, the hint of the mistake that agrees in the first thing that is wrong.

What a function leaves behind in a case is its *trace*: {facet: value}, for example
{"returned": …, "wrote into": …}. Facets are compared in the order of the reference's trace.
"""

import copy
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import permutations, product

import torch

from helpers.check import elsewhere, hidden
from helpers.check.answers import (
    alike,
    difference,
    error_words,
    in_a_line,
    oddity,
    same,
    short,
)
from helpers.check.limit import TooLong
from helpers.check.verdict import NotRight, Verdict, what_was_raised

RAISED = "raised"  # the facet of an error
KEPT = "left its arguments as"
CHANGED = "Which line works in place? The caller may still need the old numbers."


@dataclass(frozen=True)
class Case:
    """One call of a student's function: words for the finding, and its arguments.

    Attributes:
        right: what the reference leaves behind, once it has run.
    """

    words: str
    arguments: tuple
    right: dict = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """An exercise; call it with a student's function to get a Verdict.

    Attributes:
        name: of the exercise, and of the function; `helpers.check` gives it.
        right: the reference.
        cases: `(words, arguments)` each, or the arguments alone; or a function that returns them.
        draw: `draw(random)` returns a further case, for grading; see `among`.
        names: of the values that the function returns, if they are several: a facet each.
        kind: of several values: a tuple, or a dict with these names.
        keeps: whether the arguments must stay as they are.
        slips: `(mistake, …, hint)`: functions with the mistake, or Edits; and the hint for them.
        about: {the last words of a facet: hint} where no mistake fits, and this facet is the first
            that is wrong.
        last: the hint where no mistake fits.
        close: how far a number may be off, relative and absolute; 0: not at all.
        play: `play(solve, *arguments) -> trace`, where a case is more than a call.
        asks: `asks(solve, *given) -> plain data`; `play` gets it in the place of the function. Then
            only `asks` runs in a sandbox, and `play` judges outside.
        free: facets that need not be the reference's; `rule` judges them.
        rule: `rule(trace, right trace, *arguments)` raises NotRight where all facets are right but
            something else is not.
        say: `say(facet, found, right, *arguments) -> words` for the finding.
    """

    name: str = ""
    right: Callable
    cases: Sequence | Callable
    names: Sequence[str] = ()
    kind: type = tuple
    keeps: bool = False
    slips: Sequence = ()
    about: Mapping[str, str] = field(default_factory=dict)
    last: str = ""
    draw: Callable | None = None
    close: float = 0.0
    play: Callable | None = None
    asks: Callable | None = None
    free: tuple[str, ...] = ()
    rule: Callable | None = None
    say: Callable | None = None
    kept: dict = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, fn: Callable) -> Verdict:
        """Check the function with PyTorch's defaults, as on ranks and in grading, whatever the
        kernel has set; and leave the kernel's random numbers as they are."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                return self.judged(partial(self.trace, fn))
        finally:
            torch.set_default_dtype(before)

    def judged(self, trace: Callable[[Case], dict]) -> Verdict:
        """Return the verdict on a function that leaves these traces behind."""
        cases, found, first = self.asked(), [], None
        for case in cases:
            try:
                found.append(trace(case))
                first = self.problem(found[-1], case)
            except Ended as ended:
                return ended.verdict
            if first:
                break
        if first is None:
            return Verdict(self.name, "passed")
        facet, wrong = first
        finding = ": ".join(filter(None, (self.where(case), wrong.finding)))
        for later in cases[len(found) :]:
            try:
                found.append(trace(later))
            except Ended:
                break
        hint = self.hint(found, cases, facet, wrong.hint)
        return self.explained(Verdict(self.name, "wrong", finding, hint))

    def asked(self) -> list[Case]:
        """Return the cases; while grading, drawn ones too."""
        usual = self.cases() if callable(self.cases) else self.cases
        every = (*usual, *(hidden.more(self.draw) if self.draw else ()))
        return [self.case(*one) for one in every]

    def case(self, *one) -> Case:
        if len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], list | tuple):
            return Case(*one)
        return Case(by_name(inspect.signature(self.right).parameters, one), one)

    def where(self, case: Case) -> str:
        return case.words

    def explained(self, verdict: Verdict) -> Verdict:
        return verdict

    def trace(self, fn: Callable, case: Case) -> dict:
        """Return what a student's function leaves behind.

        Raises:
            Ended: the verdict is clear: not written yet, or no time left.
        """
        place, given = elsewhere.place(), copy.deepcopy(case.arguments)
        try:
            if self.asks:
                asks = partial(self.asks, fn)
                return self.play(lambda *one: place.call(asks, copy.deepcopy(one)), *given)
            return place.call(partial(self.plays(), fn), given)
        except NotImplementedError:
            raise Ended(Verdict(self.name, "not written yet")) from None
        except TooLong:
            late = f"your function has not returned after {elsewhere.SECONDS:.0f} s"
            hint = "Is there a loop that does not end?"
            raise Ended(Verdict(self.name, "wrong", f"{case.words}: {late}", hint)) from None
        except elsewhere.Failed as failed:
            return {RAISED: (str(failed), str(failed))}
        except (Exception, SystemExit) as error:
            return {RAISED: (in_a_line(error), what_was_raised(error))}

    def plays(self) -> Callable:
        """Return what runs a function; it travels, and must not hold the exercise."""
        return self.play or partial(call, names=self.names, kind=self.kind, keeps=self.keeps)

    def wrongs(self, cases: Sequence[Case]) -> list[tuple[list[dict], str]]:
        """Return each mistake's traces in these cases, and its hint. They are kept."""
        key = (hidden.secret(), *(case.words for case in cases))
        if key not in self.kept:
            self.kept[key] = [
                ([self.left(mistake, case) for case in cases], hint)
                for mistake, hint in (*self.mistakes(), *self.fixed(cases))
            ]
        return self.kept[key]

    def fixed(self, cases: Sequence[Case]) -> Iterator[tuple[Callable, str]]:
        """Yield mistakes that fit every exercise of a kind: here, values in another order."""
        if self.names and self.kind is tuple:
            for order in permutations(range(len(self.names))):
                yield partial(reordered, self.right, order), self.form()

    def form(self) -> str:
        """Return the hint on what to return, if it is several values."""
        if self.kind is dict:
            return f"Return a dict with the keys {', '.join(map(repr, self.names))}."
        return f"Return {len(self.names)} {self.noun()}: {', then '.join(self.names)}."

    def noun(self) -> str:
        return "values"

    def mistakes(self) -> list[tuple[Callable, str]]:
        """Return the functions with a mistake, as a student would write them, and the hints."""
        return [(self.made(one), hint) for *mistakes, hint in self.slips for one in mistakes]

    def made(self, mistake) -> Callable:
        return mistake.of(self.right) if isinstance(mistake, Edit) else mistake

    def left(self, mistake: Callable, case: Case) -> dict:
        """Return what a function of the course leaves behind."""
        solve = partial(self.asks, mistake) if self.asks else mistake
        try:
            return self.plays()(solve, *copy.deepcopy(case.arguments))
        except Exception as error:
            return {RAISED: (in_a_line(error), "")}

    def expected(self, case: Case) -> dict:
        if not case.right:
            case.right.update(self.left(self.right, case))
        return case.right

    def problem(self, trace: dict, case: Case) -> tuple[str, NotRight] | None:
        """Return the first facet that is wrong, and what is wrong with it."""
        if RAISED in trace:
            return RAISED, NotRight(trace[RAISED][1])
        right = self.expected(case)
        for facet, value in right.items():
            found = trace.get(facet)
            try:
                if odd := oddity(found):
                    return facet, NotRight(f"returned {odd}")
                if facet not in self.free and not same(found, value, self.close):
                    return facet, self.complaint(facet, found, value, case)
            except NotRight as wrong:
                return facet, wrong
            except Exception as error:  # an answer that nobody thought of
                return facet, NotRight(
                    f"the check cannot compare what you returned, {short(found)} "
                    f"({in_a_line(error)})"
                )
        try:
            if self.rule:
                self.rule(trace, right, *case.arguments)
        except NotRight as wrong:
            return next(iter(self.free), facet), wrong
        return None

    def complaint(self, facet: str, found, right, case: Case) -> NotRight:
        words, hint = difference(found, right)
        if facet == KEPT:
            return NotRight("the answer is right, but an argument has changed", CHANGED)
        if facet == "returned" and self.names:
            return NotRight(f"returned {found}", self.form())
        if self.say:
            words = self.say(facet, found, right, *case.arguments) or f"{facet} {words}"
            return NotRight(words, hint)
        return NotRight(f"{facet} {words}", hint)

    def hint(self, found: list[dict], cases: Sequence[Case], facet: str, general: str) -> str:
        """Return the hint of the mistake that leaves these traces.

        The best agrees in all facets; the next in all but the free ones; the last up to the first
        facet that is wrong. A mistake that leaves what the reference leaves explains nothing.
        """
        cases = cases[: len(found)]
        rights = [self.expected(case) for case in cases]
        every = [list(right) for right in rights]
        bound = [[name for name in names if name not in self.free] for names in every]
        start = [self.start(*three, facet) for three in zip(found, rights, bound, strict=True)]
        mistakes = list(self.wrongs(cases))
        closeness = sorted({1e-9, max(1e-9, self.close)})  # where it is wide, mistakes look alike
        stages = (every, start) if facet in self.free else (every, bound, start)
        for close, facets in product(closeness, stages):
            for traces, hint in mistakes:
                fits = all(map(partial(self.fits, close=close), found, traces, facets))
                if fits and not all(map(self.agrees, traces, rights, facets)):
                    return hint
        told = (hint for words, hint in self.about.items() if facet.endswith(words))
        return next(told, general) or self.last

    def start(self, found: dict, right: dict, names: list[str], facet: str) -> list[str]:
        """Return the facets up to the first that is wrong; those that have to be right, if none."""
        for place, name in enumerate(names):
            if not same(found.get(name), right[name], self.close):
                return names[: place + 1]
        return [*names, facet] if facet in self.free else names

    def fits(self, found: dict, wrong: dict, facets: Sequence[str], close: float) -> bool:
        if RAISED in found or RAISED in wrong:
            both = RAISED in found and RAISED in wrong
            return both and len({error_words(one[RAISED][0]) for one in (found, wrong)}) == 1
        try:
            return all(alike(found.get(name), wrong.get(name), close) for name in facets)
        except Exception:  # an answer that nobody thought of
            return False

    def agrees(self, wrong: dict, right: dict, facets: Sequence[str]) -> bool:
        if RAISED in wrong:
            return False
        return all(same(wrong.get(name), right.get(name), self.close) for name in facets)


class Edit:
    """A mistake as a change of the reference's source: `Edit("free.pop(0)", "free[0]")`.

    Args:
        texts: an old text, that stands in the source once, and the new text; more such pairs.
    """

    def __init__(self, *texts: str):
        self.pairs = list(zip(texts[::2], texts[1::2], strict=True))

    def of(self, right: Callable) -> Callable:
        """Return the reference with this mistake."""
        return edited(right, tuple(self.pairs))


@cache
def edited(right: Callable, pairs: tuple[tuple[str, str], ...]) -> Callable:
    source = textwrap.dedent(source_of(right))
    for old, new in pairs:
        if source.count(old) != 1:
            raise ValueError(f"{old!r} stands {source.count(old)} times in {right.__name__}")
        source = source.replace(old, new)
    names = {**right.__globals__, "__name__": "a mistake"}
    exec(compile(source, f"<{right.__name__} with a mistake>", "exec"), names)
    return names[right.__name__]


source_of = cache(inspect.getsource)


class Ended(Exception):
    """No further case is needed: the verdict is clear."""

    def __init__(self, verdict: Verdict):
        super().__init__(verdict.finding)
        self.verdict = verdict


def call(solve: Callable, *arguments, names=(), kind: type = tuple, keeps=False) -> dict:
    """The trace of one call: what is returned, and the arguments afterwards."""
    answer = solve(*arguments)
    parts = parted(answer, names, kind) if names else {"returned": answer}
    return {**parts, **({KEPT: arguments} if keeps else {})}


def parted(answer, names: Sequence[str], kind: type = tuple) -> dict:
    """The facets of several values: of a tuple, or of a dict with these keys."""
    if kind is dict and isinstance(answer, dict) and set(answer) == set(names):
        return {"returned": "a dict"} | {name: answer[name] for name in names}
    if kind is tuple and isinstance(answer, tuple | list) and len(answer) == len(names):
        return {"returned": f"{len(names)} values"} | dict(zip(names, answer, strict=True))
    return {"returned": short(answer)}


def reordered(right: Callable, order: Sequence[int], *arguments) -> list:
    values = right(*arguments)
    return [values[place] for place in order]


def among(**ranges) -> Callable:
    """Return a `draw`: for each argument an entry of a list, or a number between the two given."""

    def drawn(random, given):
        if isinstance(given, list):
            return random.choice(given)
        return (random.uniform if isinstance(given[0], float) else random.randint)(*given)

    return lambda random: tuple(drawn(random, given) for given in ranges.values())


def by_name(names: Iterable[str], values: Iterable) -> str:
    return ", ".join(f"{name} = {short(one)}" for name, one in zip(names, values, strict=False))
