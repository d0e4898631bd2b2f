"""Exercise of week 2: the optimum for a budget, against a numerical minimum."""

import math

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict

BUDGET = 1e-6  # relative: C = 6 N D to rounding
NEAR = 1e-4  # relative: a search on the loss, which is flat there, reaches about 1e-5
LAWS = (  # C, E, A, B, alpha, beta
    ("Chinchilla's budget", 5.76e23, 1.69, 406.4, 410.7, 0.34, 0.28),
    ("a small budget", 1e15, 1.82, 482.0, 2085.0, 0.348, 0.366),
    ("both exponents the same", 1e21, 1.5, 300.0, 900.0, 0.3, 0.3),
    ("data matter little", 1e20, 2.0, 500.0, 50.0, 0.5, 0.2),
)


def optimal(fn) -> Verdict:
    """Check `fn(compute, E, A, B, alpha, beta) -> (N, D)` against the minimum from a search."""
    cases = [(f"{name}, C = {law[0]:g}", law, {}) for name, *law in (*LAWS, *hidden.more(drawn))]
    return examine_here("optimal", fn, cases, judge_optimal)


def drawn(random):
    alpha, beta = random.uniform(0.25, 0.45), random.uniform(0.25, 0.45)
    A, B = random.uniform(300, 900), random.uniform(300, 2000)
    return "another law", 10 ** random.uniform(18, 24), random.uniform(1, 2), A, B, alpha, beta


def lowest(compute, E, A, B, alpha, beta) -> tuple[float, float]:
    """Return (N, D) at the point where the slope of the loss over log N, with D = C / 6N, is 0.

    The search halves an interval. The loss itself is too flat there: it would give only half of a
    float's digits.
    """
    low, high = 0.0, math.log(compute / 6)
    for _ in range(60):
        middle = (low + high) / 2
        N = math.exp(middle)
        D = compute / (6 * N)
        rising = beta * B / D**beta > alpha * A / N**alpha
        low, high = (low, middle) if rising else (middle, high)
    N = math.exp(low)
    return N, compute / (6 * N)


def judge_optimal(answer, compute, *law):
    try:
        N, D = answer
    except (TypeError, ValueError):
        N = D = None
    if not (is_number(N) and is_number(D)):
        raise NotRight(f"returned {answer!r}", "Return two numbers: parameters and tokens.")
    N, D = float(N), float(D)
    right = lowest(compute, *law)
    spent = 6 * N * D
    if math.isclose(spent, compute, rel_tol=BUDGET) and near((N, D), right):
        return
    finding = f"you returned N = {N:.4g}, D = {D:.4g}"
    if not (math.isfinite(spent) and N > 0 and D > 0):
        raise NotRight(
            finding,
            "Both are positive in a right answer: which number did you raise to which power?",
        )
    finding += f": 6 N D is {spent:.4g} FLOPs"
    if math.isclose(spent, compute, rel_tol=BUDGET):
        E, A, B, alpha, beta = law
        mine, least = (E + A / n**alpha + B / d**beta for n, d in ((N, D), right))
        finding += f", a loss of {mine:.5f}; the same budget can reach {least:.5f}"
    raise NotRight(finding, hint_optimal((N, D), right, compute, *law))


def near(pair, other) -> bool:
    return all(math.isclose(x, y, rel_tol=NEAR) for x, y in zip(pair, other, strict=True))


def hint_optimal(pair, right, compute, E, A, B, alpha, beta) -> str:
    """Return the hint for the common mistake that gives this pair."""
    N, D = pair
    if near((D, N), right):
        return "Which of the two comes first?"
    spent = 6 * N * D / compute
    root, pairs = 1 / (alpha + beta), compute / 6
    a, b = beta * root, alpha * root
    G = (alpha * A / (beta * B)) ** root
    if math.isclose(N, right[0], rel_tol=NEAR):
        return "N is right. What does the budget leave for D?"
    if math.isclose(D, right[1], rel_tol=NEAR):
        return "D is right. What does the budget leave for N?"
    six = "How many FLOPs does one parameter cost for one token?"
    if math.isclose(spent, 6, rel_tol=BUDGET) or near(pair, (G * compute**a, compute**b / G)):
        return six
    if math.isclose(spent, 1 / 6, rel_tol=BUDGET):
        return six + " You have taken it off twice."
    known = [
        (G, b, "Think of the case alpha > beta: more parameters help quickly and then no more. "
         "Which of N and D should grow faster with the budget?"),
        (1 / G, a, "The powers of the budget are right; the factor before them is upside down. If "
         "A grows, should the model be larger or smaller?"),
        ((A / B) ** root, a, "At this point the two terms of the loss are equal. Is the loss "
         "lowest there? Lagrange compares the gain from a little more of each."),
        (alpha * A / (beta * B), a, "The powers of the budget are right. Your factor is from an "
         "equation for N^(alpha + beta)."),
        (1, a, "The powers of the budget are right, and the factor before them is missing: what "
         "of A and B?"),
        (1, 0.5, "As many parameters as tokens: how large is the loss there?"),
    ]  # fmt: skip
    for factor, power, hint in known:
        if near(pair, (factor * pairs**power, pairs ** (1 - power) / factor)):
            return hint
    if not math.isclose(spent, 1, rel_tol=BUDGET):
        return f"That costs {spent:.3g} times the budget. Which D is left, once N is chosen?"
    if all(math.isclose(x, y, rel_tol=0.02) for x, y in zip(pair, right, strict=True)):
        return (
            f"Nearly: the answer must be right within {NEAR:g}. The loss is flat at its lowest "
            "point: use a fine grid there, or compare the two slopes instead."
        )
    if math.isclose(D, 20 * N, rel_tol=0.01):
        return "20 tokens per parameter is a rule of thumb for another law than this."
    more = right[1] > D
    way = "a smaller model on more tokens" if more else "a larger model on fewer tokens"
    return f"The budget is kept; {way} would have a lower loss. What are both slopes here?"
