"""Exercises on ranks: the student's function runs on each rank, the reference beside it.

A rank's trace is what `run(worker, solve, **case)` returns, or that of `Called`; the exercise's
trace has for each facet the ranks' values in order. Where the function is wrong, all mistakes run
one after another on the same ranks, in one launch for each number of ranks. Their traces are kept
for the next wrong answer.

A mistake that hangs, or fails on one rank alone, cannot run beside others. It stands in `failures`,
known by words of the finding.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import torch
import torch.distributed as dist

from helpers.check import elsewhere, hidden
from helpers.check.answers import difference, in_a_line, is_number, plain, same
from helpers.check.exercise import CHANGED, RAISED, Case, Ended, Exercise, by_name, parted
from helpers.check.limit import TooLong
from helpers.check.verdict import NotRight, Verdict, own_frames
from helpers.check.watch import Watch
from helpers.runtime.failure import WorkerError
from helpers.runtime.payload import CannotTravel
from helpers.runtime.runs import Runs

TIMEOUT = 10.0  # seconds without a sign of life; an exercise needs far less
DIFFER = r"SIGABRT|ranks? \d[\d, and]* (sends?|receives?|calls?|asks? for|names?) (?!itself|rank)"
SAME_CALLS = (
    "Does every rank make the same calls, in the same order, with tensors of the same size?"
)
HANG_HINT = (
    f"A rank waits for a message or a collective that another rank never calls. {SAME_CALLS}"
)
LOOP_HINT = "A rank still runs, and waits for no other rank. Which loop of it never ends?"
UNWAITED = (
    "An all-reduce with async_op=True, an isend and an irecv only start. What do they return, and "
    "when may you read the result?"
)
ONE_ALONE = (
    "The ranks' results differ, and they should be the same. Which collective gives *every* rank "
    "the result of all ranks?"
)
OF_ANOTHER = "That is what another rank should have. On which number does the part depend?"


@dataclass(frozen=True, kw_only=True)
class OnRanks(Exercise):
    """An exercise whose function runs on ranks.

    Attributes:
        cases: `(ranks, {name: argument of run})` each.
        given: `given(worker, **case) -> arguments` after the worker, where a case is one call.
        in_place: the argument into which the function writes its result, by name.
        also: `also(answer, *arguments) -> more facets` of that call.
        run: `run(worker, solve, **case) -> trace of this rank`: plain data and tensors; where a
            case is more than a call.
        together: `together(trace, **case) -> more facets`, the same on all ranks, from the values
            of all ranks. It may also change the trace's own.
        rule: `rule(trace, right trace, ranks, case)`.
        failures: `(words, hint, mistake)`: the hint where the finding of a failed or hanging rank
            matches the words, a regular expression; and a function that fails so, for the tests.
        patience: how many times TIMEOUT a rank may be silent. On a busy machine, the first model on
            the device "meta" makes PyTorch import for seconds.
    """

    given: Callable | None = None
    in_place: str = ""
    also: Callable | None = None
    run: Callable | None = None
    together: Callable | None = None
    failures: Sequence = ()
    patience: float = 1.0

    def asked(self) -> list[Case]:
        usual = self.cases() if callable(self.cases) else self.cases
        every = (*usual, *(hidden.more(self.draw, 1) if self.draw else ()))
        return [Case(f"with {n} rank{'s' * (n > 1)}", (n, kwargs)) for n, kwargs in every]

    def where(self, case):
        """Return the words of the case, and its arguments."""
        kwargs = case.arguments[1]
        return ", ".join(filter(None, (case.words, by_name(kwargs, kwargs.values()))))

    def on_rank(self) -> Callable:
        """Return what a rank runs: `run`, or a call with the arguments of `given`."""
        names = tuple(inspect.signature(self.right).parameters)[1:]
        seen = ("unwaited", *sorted({"calls", "late", "messages"}.intersection(self.free)))
        return self.run or Called(self.given, names, self.names, seen, self.in_place, self.also)

    def gathered(self, runs: Sequence[dict], case: Case) -> dict:
        """Return {facet: the ranks' values in order}, from the ranks' traces."""
        trace, (ranks, kwargs) = by_facet(runs), case.arguments
        if self.together and RAISED not in trace:
            for facet, value in self.together(trace, **kwargs).items():
                trace[facet] = (value,) * ranks
        return trace

    def key(self, case: Case) -> str:
        return f"{hidden.secret()} {case.arguments}"

    def trace(self, fn, case):
        place, timeout = elsewhere.place(), self.patience * TIMEOUT
        beside = getattr(place, "beside", False) and self.key(case) not in self.kept
        run = self.on_rank()
        if hidden.secret() is not None:
            beside = not self.expected(case)
            run = partial(hidden.reading, run, self.kept[f"drawn {self.key(case)}"])
        elif beside:
            run = partial(both, run, self.right)
        try:
            runs = self.launched(place, run, fn, case, timeout)
            if beside:
                self.kept[self.key(case)] = self.gathered([rights for rights, _ in runs], case)
                return self.gathered([found for _, found in runs], case)
            return self.gathered(runs, case)
        except CannotTravel as error:
            raise Ended(Verdict(self.name, "wrong", str(error))) from None
        except NotImplementedError:  # raised elsewhere
            raise Ended(Verdict(self.name, "not written yet")) from None
        except (elsewhere.Failed, TooLong) as failed:
            finding = str(failed) or "your function has not returned in time"
            raise Ended(Verdict(self.name, "wrong", f"{case.words}: {finding}")) from None
        except WorkerError as error:
            if isinstance(error.__cause__, NotImplementedError):
                raise Ended(Verdict(self.name, "not written yet")) from None
            said = str(error)
            if error.kind == "hang":  # a student calls no launch here
                said = said.removesuffix(error.note).rstrip()
            finding = f"{case.words}: {own_frames(said)}"
            raised = re.search(r"\b(\w*(?:Error|Exception): .*)", said)
            if error.kind != "exception" or not raised:  # the ranks are gone: no case follows
                verdict = Verdict(self.name, "wrong", finding, self.failure(finding, error.kind))
                raise Ended(self.explained(verdict)) from None
            return {RAISED: (raised[1], own_frames(said))}

    def launched(self, place, run, fn: Callable, case: Case, timeout: float) -> Runs:
        """Run one case on ranks."""
        ranks, kwargs = case.arguments
        return attempt(place, run, ranks, fn, kwargs, timeout)

    def failure(self, finding: str, kind: str) -> str:
        """Return the hint for a failed or hanging rank; "" if its error has none of its own."""
        if kind == "hang" and loops(finding):
            return LOOP_HINT
        general = HANG_HINT if kind == "hang" else SAME_CALLS if re.search(DIFFER, finding) else ""
        return first_match(self.failures, finding) or general

    def problem(self, trace, case):
        if RAISED in trace:
            finding = trace[RAISED][1]
            return RAISED, NotRight(finding, self.failure(finding, "exception"))
        return super().problem(trace, case)

    def expected(self, case):
        key = self.key(case)
        if key not in self.kept:
            ranks, kwargs = case.arguments
            run = partial(hidden.drawing, self.on_rank(), hidden.secret())
            runs = list(elsewhere.here(run, ranks, self.right, kwargs))
            self.kept[f"drawn {key}"] = {k: v for _, drawn in runs for k, v in drawn.items()}
            self.kept[key] = self.gathered([right for right, _ in runs], case)
        return self.kept[key]

    def wrongs(self, cases):
        missing: dict[int, list[Case]] = {}
        for case in cases:
            if f"wrong {self.key(case)}" not in self.kept:
                missing.setdefault(case.arguments[0], []).append(case)
        mistakes = self.mistakes()
        for ranks, alike in missing.items():
            run = partial(many, self.on_rank(), [mistake for mistake, _ in mistakes])
            given = {"cases": [case.arguments[1] for case in alike]}
            run = partial(hidden.drawing, run, hidden.secret())
            every = [traces for traces, _ in elsewhere.here(run, ranks, None, given)]
            for case, traces in zip(alike, zip(*every, strict=True), strict=True):
                kept = [self.gathered(one, case) for one in zip(*traces, strict=True)]
                self.kept[f"wrong {self.key(case)}"] = kept
        return [
            ([self.kept[f"wrong {self.key(case)}"][number] for case in cases], hint)
            for number, (_, hint) in enumerate(mistakes)
        ]

    def hint(self, found, cases, facet, general):
        return super().hint(found, cases, facet, self.relation(found, cases, facet) or general)

    def relation(self, found: list[dict], cases: Sequence[Case], facet: str) -> str:
        """Return the hint of a relation to the right numbers that holds in every case, if any."""
        fitting = list(RELATIONS)
        for trace, case in zip(found, cases, strict=False):
            pairs = (trace.get(facet, ()), self.expected(case).get(facet, ()))
            given, right = ([as_numbers(one) for one in values] for values in pairs)
            if not right or any(a is None or b is None for a, b in zip_longest(given, right)):
                return ""
            if any(len(a) != len(b) for a, b in zip(given, right, strict=True)):
                return ""
            close = self.close or 1e-9
            fitting = [one for one in fitting if one[1](given, right, len(right), close)]
        return fitting[0][0] if fitting else ""

    def complaint(self, facet, found, right, case):
        ranks, kwargs = case.arguments
        unwaited = facet.startswith("unwaited")
        told = "" if unwaited or not self.say else self.say(facet, found, right, ranks, **kwargs)
        rank = next(r for r in range(ranks) if not same(found[r], right[r], self.close))
        whose = ""
        if unwaited:
            words, hint = f"rank {rank} returned before {found[rank]} messages were over", UNWAITED
        elif facet == "changed" and isinstance(found[rank], tuple):
            words = f"rank {rank} wrote into {', '.join(found[rank])}, which it was given"
            hint = CHANGED
        elif facet.startswith("messages"):
            words = (
                f"the numbers are right, but rank {rank} sent {sent(found[rank])}; "
                f"{ranks} ranks need {sent(right[rank])}"
            )
            hint = "Which message is too much, which is missing, and how large must it be?"
        else:
            words, hint = difference(found[rank], right[rank])
            hint = self.form() if facet == "returned" and self.names else hint
            alike = [
                all(same(one[0], other, self.close) for other in one) for one in (found, right)
            ]
            everywhere_so = ranks > 1 and all(alike)
            words = f"{facet}: {words}" if everywhere_so else f"{facet} of rank {rank}: {words}"
            if alike == [False, True]:
                hint = ONE_ALONE
            for other in range(ranks):
                if other != rank and same(found[rank], right[other], self.close):
                    whose, hint = f"; it is what rank {other} should have", OF_ANOTHER
        return NotRight(f"{told}\n{words}{whose}" if told else words + whose, hint)


def as_numbers(value) -> torch.Tensor | None:
    """Return all numbers of a value in one row; None if it has none."""
    if isinstance(value, torch.Tensor):
        return value.double().flatten()
    if is_number(value):
        return torch.tensor([value], dtype=torch.float64)
    if not isinstance(value, dict | list | tuple):
        return None
    rows = list(map(as_numbers, value.values() if isinstance(value, dict) else value))
    return torch.cat(rows) if rows and all(row is not None for row in rows) else None


def total(rows: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the sum over the ranks; None if their sizes differ."""
    return sum(rows) if len({len(row) for row in rows}) == 1 else None


def close_to(found, right, close: float) -> bool:
    return all(
        one is not None
        and two is not None
        and len(one) == len(two)
        and torch.allclose(one, two, close, close)
        for one, two in zip(found, right, strict=True)
    )


RELATIONS = (  # hint, whether it holds: the ranks' numbers, the right ones, ranks, closeness
    (
        "It is divided by the number of ranks. Is it a sum over the ranks, or a mean?",
        lambda given, right, n, close: close_to(given, [row / n for row in right], close),
    ),
    (
        "It is multiplied by the number of ranks: which sum adds numbers that all ranks have?",
        lambda given, right, n, close: close_to(given, [row * n for row in right], close),
    ),
    (
        "That is this rank's part. The sum of the ranks' parts is right: which message adds them?",
        lambda given, right, n, close: close_to([total(given)] * n, right, close),
    ),
    (
        "That is this rank's own. The mean over the ranks is right: which message is missing?",
        lambda given, right, n, close: close_to([total([g / n for g in given])] * n, right, close),
    ),
    (
        "That is a sum over the ranks, but each rank's numbers are its own: which message is too "
        "much?",
        lambda given, right, n, close: close_to(given, [total(right)] * n, close),
    ),
    (
        "Rank 0 alone is right. Which collective gives the result to all ranks?",
        lambda given, right, n, close: (
            n == 1
            or (close_to(given[:1], right[:1], close) and not close_to(given[1:], right[1:], close))
        ),
    ),
    (
        "That is a mean over the ranks, but each rank's numbers are its own: do not mix them.",
        lambda given, right, n, close: close_to(given, [total([r / n for r in right])] * n, close),
    ),
    (
        "All ranks have what rank 0 should have. On which number does a rank's part depend?",
        lambda given, right, n, close: close_to(given, right[:1] * n, close),
    ),
)


@dataclass(frozen=True)
class Called:
    """On a rank: the trace of one call, with the arguments `given(worker, **case)`.

    Its facets: what was `seen` of the messages, what the call leaves in the argument `in_place`,
    which other arguments it "changed", and "the result", or each of several values.
    """

    given: Callable | None
    names: tuple[str, ...]
    values: Sequence[str]
    seen: tuple[str, ...]
    in_place: str
    also: Callable | None

    def __call__(self, worker, solve, **case):
        return self.on(worker, solve, self.given(worker, **case))

    def on(self, worker, solve, arguments: tuple):
        before = plain(arguments)
        answer, noted = observed(solve, worker, *arguments)
        seen = {name: noted[name] for name in self.seen}
        after = dict(zip(self.names, plain(arguments), strict=False))
        written = {f"`{self.in_place}`": after.pop(self.in_place)} if self.in_place else {}
        old = dict(zip(self.names, before, strict=False))
        changed = tuple(f"`{name}`" for name in after if not same(after[name], old[name]))
        also = self.also(answer, *arguments) if self.also else {}
        parts = parted(answer, self.values) if self.values else {"the result": answer}
        for name, one in parts.items():
            scalar = isinstance(one, torch.Tensor) and one.ndim == 0
            parts[name] = one.item() if scalar else plain(one)
        return {**seen, **written, "changed": changed, **parts, **also}


def both(run: Callable, right: Callable, worker, /, solve, **case):
    """On a rank: the trace of the reference, then that of the student's function."""
    rights = run(worker, right, **case)
    return rights, run(worker, solve, **case)


def many(run: Callable, mistakes: Sequence[Callable], worker, /, solve, cases):
    """On a rank: for each case, the traces of all mistakes."""

    def left(mistake, case):
        try:
            return run(worker, mistake, **case)
        except Exception as error:  # on all ranks alike; else it belongs into `failures`
            return {RAISED: (in_a_line(error), "")}

    return [[left(mistake, case) for mistake in mistakes] for case in cases]


def by_facet(runs: Sequence[dict]) -> dict:
    """{facet: the ranks' values in order}; of a mistake that fails, its error."""
    if any(RAISED in run for run in runs):
        return {RAISED: next(run[RAISED] for run in runs if RAISED in run)}
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: tuple(run.get(name) for run in runs) for name in names}


def attempt(place, run, workers: int, fn: Callable, kwargs, timeout: float) -> Runs:
    """Run one case. Run it once more if the machine was too busy to start it in time."""
    try:
        return place.launch(run, workers, fn, kwargs, timeout)
    except WorkerError as error:
        if not started_too_slowly(str(error)):
            raise
    return place.launch(run, workers, fn, kwargs, timeout)


def started_too_slowly(finding: str) -> bool:
    """Whether no rank reached the student's function, because the machine was busy."""
    ranks = re.findall(r"^rank \d+ was (.*)", finding, re.M)
    return bool(ranks) and all(doing == "not answering" for doing in ranks)


_kept: list = []  # of this rank, until it ends: the requests that its calls have made


def observed(solve: Callable, *arguments) -> tuple[object, dict]:
    """Call on this rank: the answer; its calls and messages, and the requests left open."""
    with Watch(arguments) as watch:
        answer = solve(*arguments)
    _kept.append(watch.works)  # else what is under way would end here, and its receiver hang
    messages = tuple((e.name, e.nbytes) for e in watch.events if e.kind == "message")
    noted = {"calls": watch.calls, "unwaited": watch.unwaited(), "messages": messages}
    return answer, noted | {"late": watch.late}


def loops(finding: str) -> bool:
    """Whether a rank that hangs was running, and waited neither for a rank nor for a request."""
    running = re.findall(r"^rank \d+ was running.*", finding, re.M)
    alone = "is not in a collective" in finding or "waiting in" not in finding
    return alone and any(".wait(" not in line for line in running)


def first_match(table: Sequence[tuple], finding: str) -> str:
    """Return the hint of the first row `(words, hint, …)` whose words the finding has."""
    return next((hint for words, hint, *_ in table if re.search(words, finding)), "")


def everywhere(flag: bool) -> bool:
    """Whether it holds on all ranks. Else no rank goes on, and none waits for another."""
    wrong = torch.tensor([int(not flag)])
    dist.all_reduce(wrong)
    return not wrong


def sent(messages) -> str:
    if not messages:
        return "no message"
    return ", ".join(f"{name} of {nbytes:,} bytes" for name, nbytes in messages)
