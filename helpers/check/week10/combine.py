"""Exercise of week 10: the associative operator of the linear recurrence."""

import torch

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict

CLOSE = {"rtol": 0, "atol": 1e-12}
# Shapes of a and of b: numbers, vectors, a decay that a whole state shares, no numbers.
SHAPES = (((), ()), ((4,), (4,)), ((3, 1), (3, 5)), ((0,), (0,)))

# Common wrong answers (a, b), from the pairs (a1, b1) and (a2, b2), and the hint for each.
WRONG = (
    (
        lambda a1, b1, a2, b2: (a1 * a2, a1 * b2 + b1),
        "This does the later steps first. The operator is not commutative: which decay does the "
        "state of the earlier steps still have to go through?",
    ),
    (
        lambda a1, b1, a2, b2: (a1 * a2, b1 + b2),
        "The earlier state goes through the later steps, and they multiply it by their decay.",
    ),
    (
        lambda a1, b1, a2, b2: (a1 * a2, a1 * b1 + b2),
        "b1 is the state after the earlier steps: their decay a1 is in it already. Which decay "
        "comes after it?",
    ),
    (
        lambda a1, b1, a2, b2: (a1 * a2, a2 * b1 + a1 * b2),
        "The later input b2 comes after the earlier steps, so their decay does not touch it.",
    ),
    (
        lambda a1, b1, a2, b2: (a1 * a2, a2 * (b1 + b2)),
        "The later input b2 is added after the later decay: a2 does not multiply it.",
    ),
    (
        lambda a1, b1, a2, b2: (a1 * a2, a1 * a2 * b1 + b2),
        "b1 is the state after the earlier steps: their decay a1 is in it already.",
    ),
    (
        lambda a1, b1, a2, b2: (a1 * a2, b2),
        "The state of the earlier steps is lost.",
    ),
    (
        lambda a1, b1, a2, b2: (a1 + a2, a2 * b1 + b2),
        "h goes through both steps: its factors are multiplied, not added.",
    ),
    (
        lambda a1, b1, a2, b2: (a2, a2 * b1 + b2),
        "h goes through both steps. By which number is it multiplied in all?",
    ),
    (
        lambda a1, b1, a2, b2: (a1, a2 * b1 + b2),
        "h goes through both steps. By which number is it multiplied in all?",
    ),
)


def combine(fn) -> Verdict:
    """Check `fn(earlier, later) -> (a, b)`: one step h → a h + b with the effect of both."""
    generator = torch.Generator().manual_seed(hidden.seed(0))
    cases = []
    for a_shape, b_shape in SHAPES:
        pairs = [
            tuple(
                torch.randn(s, generator=generator, dtype=torch.float64) for s in (a_shape, b_shape)
            )
            for _ in range(2)
        ]
        where = f"a of shape {a_shape}, b of shape {b_shape}"
        cases.append((where, (fn, pairs), {}))
    return examine_here("combine", called, cases, judge)


def called(fn, pairs):
    """The answer, and the arguments after the call."""
    return fn(*pairs), pairs


def judge(answer, fn, pairs):
    answer, after = answer
    (a1, b1), (a2, b2) = pairs
    right = (a1 * a2, a2 * b1 + b2)
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise NotRight(f"returned {said(answer)}", "Return a pair again: (a, b).")
    if not all(isinstance(part, torch.Tensor) for part in answer):
        raise NotRight(f"returned {said(answer)}", "Both parts of the pair are tensors.")
    for name, part, wanted in zip("ab", answer, right, strict=True):
        if part.shape != wanted.shape:
            raise NotRight(
                f"{name} has the shape {tuple(part.shape)}, and should have {tuple(wanted.shape)}",
                "Each number has its own recurrence: multiply and add number by number.",
            )
    if not same(answer, right):
        finding = (
            f"for (a, b) = ({first(a1)}, {first(b1)}), then ({first(a2)}, {first(b2)}): returned "
            f"({first(answer[0])}, {first(answer[1])})"
        )
        raise NotRight(finding, hint(answer, a1, b1, a2, b2))
    if not all(same(old, new) for old, new in zip(pairs, after, strict=True)):
        raise NotRight(
            "the pair is right, but an argument has changed",
            "A scan uses each pair again. Make new tensors; do not write into the old ones.",
        )


def hint(answer, a1, b1, a2, b2) -> str:
    for rule, words in WRONG:
        if same(answer, rule(a1, b1, a2, b2)):
            return words
    return (
        "Start with h. Write down what the earlier step makes of it, then what the later step "
        "makes of that. Sort by h: its factor is a, and the rest is b."
    )


def same(first_pair, second_pair) -> bool:
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), **CLOSE)
        for a, b in zip(first_pair, second_pair, strict=True)
    )


def first(tensor) -> str:
    return f"{tensor.flatten()[0].item():.3g}"


def said(answer) -> str:
    text = repr(answer)
    return text if len(text) < 80 else f"{text[:77]}…"
