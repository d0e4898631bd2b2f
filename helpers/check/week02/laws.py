"""Exercises of week 2: FLOPs of training, the objective of a fit, and the optimum for a budget."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from helpers.check import hidden
from helpers.check.answers import is_number
from helpers.check.exercise import Exercise, Number
from helpers.check.verdict import NotRight
from helpers.measure.flops import flops_of
from helpers.models.config import GPTConfig
from helpers.models.gpt import build, loss_sum
from helpers.models.parameter_counts import parameters

# count_flops

# Explicit attention computes nothing twice; fused attention computes its scores again.
SMALL = {"vocab": 56, "context": 24, "width": 32, "heads": 4, "attention": "explicit"}
MODELS = (  # words, what differs from SMALL, tokens
    ("a GPT of GPT-2's kind", {"layers": 2, "mlp": "gelu", "norm": "layer", "bias": True}, 16),
    ("one layer", {"layers": 1, "mlp": "gelu", "positions": "learned"}, 24),
    ("a single token", {"layers": 2, "mlp": "gelu"}, 1),
    ("SwiGLU", {"layers": 2, "mlp": "swiglu", "hidden": 72}, 16),
    ("grouped queries", {"layers": 3, "mlp": "gelu", "kv_heads": 2}, 16),
    ("a head of its own", {"layers": 2, "mlp": "gelu", "tied": False}, 16),
    ("as Llama 3", {"layers": 2, "kv_heads": 1, "hidden": 96, "tied": False}, 20),
)


def drawn_model(random):
    changes = {
        "layers": random.randint(1, 4),
        "mlp": random.choice(("gelu", "swiglu")),
        "hidden": 8 * random.randint(8, 20),
        "kv_heads": random.choice((1, 2, 4)),
        "tied": random.random() < 0.5,
    }
    return "another model", (GPTConfig(**{**SMALL, **changes}), random.randint(2, 24))


@cache
def counted(config: GPTConfig, tokens: int) -> int:
    """Return PyTorch's count of the FLOPs of the products in one real step on one sequence."""
    model, ids = build(config), torch.zeros(1, tokens, dtype=torch.long)

    def step():
        loss, _ = loss_sum(model(ids), ids)
        loss.backward()

    return flops_of(step).model


def say_flops(found, right, c, tokens) -> str:
    return (
        f"{tokens} tokens, {c.layers} layers of width {c.width}, {c.heads} heads ({c.key_heads} of "
        f"keys and values), MLP {c.mlp} of {c.inner}, vocab {c.vocab}\n  you returned "
        f"{found:,.12g} FLOPs; PyTorch counted {right:,} in a forward and a backward"
    )


class Parts:
    """Multiply-adds of a forward that a sum may forget or count too often."""

    def __init__(self, config: GPTConfig, tokens: int):
        c, every = config, config.layers * tokens
        self.keys = every * 2 * c.width * c.key_heads * c.head_width  # keys and values
        self.scores = every * 2 * tokens * c.heads * c.head_width  # scores, and sums they weigh
        self.matrix = every * c.width * c.inner  # one matrix of the MLP
        self.matrices = 3 if c.mlp == "swiglu" else 2
        self.default = every * self.matrices * c.width * (4 * c.width - c.inner)
        self.head = tokens * c.vocab * c.width
        own = parameters(c)  # of them, the idle ones are outside every product
        self.idle = tokens * (own.total - own.non_embedding) - self.head


def off(difference: Callable) -> Callable:
    """The mistake that adds `difference(parts, config)` multiply-adds to a forward."""

    def change(b, g):
        return b + 6 * difference(Parts(g.config, g.tokens), g.config)  # 2 FLOPs, three times

    return change


NO_PARAMETERS = "Which products of attention have no parameters?"
LOOKED_UP = "Not every parameter is in a product: which are only added, or looked up?"
count_flops = Number(
    name="count_flops",
    right=counted,
    unit="FLOPs",
    say=say_flops,
    draw=drawn_model,
    cases=tuple((words, (GPTConfig(**{**SMALL, **new}), n)) for words, new, n in MODELS),
    slips=(
        (lambda b, g: b / 3, "That is as much as a forward. Which other products does training "
         "compute?"),
        (lambda b, g: b * 2 / 3, "The backward wants two gradients for each product of the "
         "forward."),
        (lambda b, g: b * 4 / 3, "That is one forward more, as if all activations were computed "
         "again."),
        (lambda b, g: b / 2, "How many FLOPs is one multiply-add?"),
        (lambda b, g: b / g.tokens, "A whole sequence has more than one token: count them all."),
        (off(lambda p, c: -p.scores), "Your sum has all matrices with parameters. "
         + NO_PARAMETERS),
        (off(lambda p, c: -p.scores - p.head), f"6 N, with N the blocks' matrices. {NO_PARAMETERS} "
         "And what comes after the last block?"),
        (off(lambda p, c: p.idle - p.scores), f"6 N, with N all parameters. {LOOKED_UP} "
         + NO_PARAMETERS),
        (off(lambda p, c: p.idle), LOOKED_UP),
        (off(lambda p, c: p.scores * (c.key_heads / c.heads - 1)), "There are fewer heads of keys. "
         "But how many heads of queries are compared with keys?"),
        (off(lambda p, c: -p.scores / 2), "Half of attention's products are missing. How many does "
         "a head compute? And does a product skip what is masked afterwards?"),
        (lambda b, g: b - 6 * Parts(g.config, g.tokens).scores * (1 - 1 / g.tokens), "How many "
         "scores are there if every token looks at every other?"),
        (off(lambda p, c: p.head), "You count a table too many: what happens to a token before the "
         "first block?"),
        (off(lambda p, c: -p.head), "The blocks are right. How does the last vector become logits? "
         "A shared matrix is multiplied as well."),
        (off(lambda p, c: (2 - p.matrices) * p.matrix), "How many matrices does this kind of MLP "
         "have?"),
        (off(lambda p, c: (3 - p.matrices) * p.matrix), "How many matrices does this kind of MLP "
         "have?"),
        (off(lambda p, c: p.default), "How wide is this MLP inside? `width` does not show it."),
        (off(lambda p, c: p.keys * (c.heads // c.key_heads - 1)), "You count as if every query "
         "head had its own keys and values. How many heads of keys are there?"),
    ),
    last="List the products of one layer as (T, in) × (in, out), attention's for each head, and "
    "the product after the last layer. Print the parts of your sum: which part surprises you?",
)  # fmt: skip

# huber_objective

THETA = (6.0073404, 6.0179186, 0.5267228, 0.33917084, 0.2849083)  # Hoffmann et al. 2022, unrounded
DELTA = 1e-3
NUMBERS = (  # words, theta, runs, noise, delta
    ("near the minimum", THETA, 12, 0.004, DELTA),
    ("all within delta", THETA, 5, 0.0003, DELTA),
    ("another start of the search", (10.0, 5.0, -0.5, 1.0, 0.5), 9, 0.01, DELTA),
    ("another delta", THETA, 12, 0.02, 1e-2),
    ("one run", (5.0, 6.0, 0.5, 0.3, 0.3), 1, 0.01, DELTA),
    ("large exponents", (900.0, 20.0, 1.0, 0.3, 0.3), 6, 0.01, DELTA),
    ("small exponents", (-900.0, -850.0, -800.0, 0.3, 0.3), 6, 0.01, DELTA),
)


def fits():
    """Runs by Chinchilla's law, with noise: the same in every process."""
    cases = []
    for words, theta, n, noise, delta in NUMBERS:
        rng = np.random.default_rng(hidden.seed(n))
        params, tokens = 10 ** rng.uniform(7, 10, n), 10 ** rng.uniform(9, 11, n)
        loss = np.exp(predicted(THETA, params, tokens) + noise * rng.uniform(-1, 1, n))
        given = (theta, params, tokens, loss) + (delta,) * (delta != DELTA)
        cases.append((f"{words}, {n} run{'s' * (n > 1)}, delta {delta:g}", given))
    return cases


def exponents(theta, params, tokens):
    """Return the logarithms of the three terms of the loss."""
    a, b, e, alpha, beta = theta
    return a - alpha * np.log(params), b - beta * np.log(tokens), e + 0 * params


def log_sum(*terms) -> np.ndarray:
    return np.logaddexp.reduce(terms)


def predicted(theta, params, tokens) -> np.ndarray:
    """Return log L: the log of the sum of three terms, from their logs."""
    return log_sum(*exponents(theta, params, tokens))


def huber(r, delta: float, beyond: Callable = lambda far, delta: delta * (far - delta / 2)):
    """Return Huber's loss of each residual; `beyond` is the straight line."""
    far = np.abs(r)
    return np.where(far <= delta, far * far / 2, beyond(far, delta))


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The reference in pieces (Hoffmann et al. 2022, equation 3). A mistake replaces some."""

    terms: Callable = exponents
    log: Callable = log_sum
    residual: Callable = lambda log_loss, loss: log_loss - np.log(loss)
    huber: Callable = huber
    total: Callable = lambda terms: float(np.sum(terms))

    def __call__(self, theta, params, tokens, loss, delta=DELTA):
        with np.errstate(all="ignore"):
            r = self.residual(self.log(*self.terms(theta, params, tokens)), loss)
            return self.total(self.huber(r, delta))


def wrong(**pieces) -> Objective:
    return Objective(**pieces)


def line(beyond: Callable) -> Objective:
    """With another straight line beyond delta."""
    return wrong(huber=lambda r, delta: huber(r, delta, beyond))


def by_powers(theta, params, tokens):
    a, b, e, alpha, beta = theta
    return np.log(a / params**alpha), np.log(b / tokens**beta), np.log(e) + 0 * params


def in_tens(theta, params, tokens):
    return exponents(theta, np.exp(np.log10(params)), np.exp(np.log10(tokens)))


def say_objective(found, right, theta, params, tokens, loss, delta=DELTA) -> str:
    residuals = predicted(theta, params, tokens) - np.log(loss)
    return (
        f"you returned {found:.8g}; right is {right:.8g} (residuals from {residuals.min():.3g} to "
        f"{residuals.max():.3g})"
    )


SQUARES = "You square every residual, so one outlier dominates. What is delta for?"
TEN = "Which logarithm? The exponents and the logarithms must have the same base."
BEGIN = "Your straight line does not begin where the parabola ends. Are the two equal at delta?"
ALONE = "You use the straight line alone. Which curve belongs near zero?"
E_MISSING = "Where is E? theta contains its logarithm, and E is one of the three terms."
huber_objective = Number(
    name="huber_objective",
    right=Objective(),
    unit="the objective",
    say=say_objective,
    close=1e-6,  # sums in another order differ by 1e-12; log1p or logaddexp likewise
    cases=fits,
    slips=(
        (wrong(log=lambda *terms: np.log(sum(map(np.exp, terms)))), "An exponential was too large "
         "for a float, or all were too small. The log of a sum of exponentials does not need them: "
         "which of the three can be taken out first?"),
        (wrong(total=np.mean), "You have averaged the terms. A minimiser stops when little "
         "changes: what does a factor of 1/n do to it?"),
        (wrong(total=lambda terms: terms), "That is one for each run, but a search minimises a "
         "single number: which?"),
        (wrong(huber=lambda r, delta: r * r / 2), SQUARES),
        (wrong(huber=lambda r, delta: r * r), SQUARES),
        (wrong(residual=lambda log_loss, loss: np.exp(log_loss) - loss), "Your residual is of the "
         "losses, so a large loss counts more than a small one. Which difference does the paper "
         "use?"),
        (wrong(residual=lambda log_loss, loss: (log_loss - np.log(loss)) / np.log(10)), TEN),
        (wrong(residual=lambda log_loss, loss: log_loss - np.log10(loss)), TEN),
        (wrong(terms=in_tens, residual=lambda log_loss, loss: log_loss - np.log10(loss)), TEN),
        (wrong(terms=in_tens), TEN),
        (line(lambda far, delta: far - delta / 2), "Beyond delta your line has a slope of 1. What "
         "is the parabola's slope at delta?"),
        (wrong(huber=lambda r, delta: huber(r, delta) / delta), "That is Huber's loss divided by "
         "delta. Compare the parabola with the docstring's."),
        (line(lambda far, delta: delta * far), BEGIN),
        (line(lambda far, delta: delta * (far - delta)), BEGIN),
        (wrong(huber=lambda r, delta: np.where(
            abs(r) > delta, r * r / 2, delta * (abs(r) - delta / 2))),
         "Parabola and straight line have changed places: which fits small residuals?"),
        (wrong(huber=lambda r, delta: delta * (abs(r) - delta / 2)), ALONE),
        (wrong(huber=lambda r, delta: delta * abs(r)), ALONE),
        (wrong(huber=lambda r, delta: huber(r, DELTA)), "That is the sum for a delta of 1e-3. Use "
         "the delta that was handed over."),
        (wrong(log=lambda a, b, e: log_sum(a, b)), E_MISSING),
        (wrong(log=lambda a, b, e: log_sum(a, b) + e), E_MISSING),
        (wrong(terms=by_powers), "theta contains the logarithms of A, B and E already."),
        (wrong(terms=lambda theta, N, D: exponents((*theta[:3], theta[4], theta[3]), N, D)), "You "
         "swapped two exponents: which term is divided by N^alpha?"),
        (wrong(terms=lambda theta, N, D: exponents(theta, D, N)), "Which array belongs to which "
         "exponent? alpha is the power of N, beta of D."),
        (wrong(huber=lambda r, delta: np.where(r <= delta, r * r / 2, delta * (r - delta / 2))),
         "Huber's loss needs a residual's size, not which sign it has. Which residuals are <= "
         "delta?"),
        (wrong(huber=lambda r, delta: 2 * huber(r, delta)), "Twice as much as the right sum: "
         "compare your parabola with the docstring's."),
        (wrong(huber=lambda r, delta: huber(r, delta, lambda far, delta: delta * far - delta / 2)),
         "At delta the straight line has to equal the parabola, delta²/2. Which term is not "
         "multiplied by delta?"),
        (wrong(terms=lambda theta, N, D: exponents((*theta[:3], -theta[3], -theta[4]), N, D)),
         "Does a larger model make the loss larger? Look at the signs."),
        (wrong(log=lambda *terms: log_sum(*terms) - np.maximum.reduce(terms)), "You took a term "
         "out of the sum of exponentials, and never put back its exponent."),
        (wrong(log=lambda *terms: np.maximum.reduce(terms)), "That is the largest of the three "
         "alone. The sum has two more terms."),
    ),
    last="Take one run and print each step: the three exponents, the log of the sum, the residual, "
    "and its side of delta.",
)  # fmt: skip

# optimal

BUDGET = 1e-6  # relative: C = 6 N D to rounding
NEAR = 1e-4  # relative: a search on the loss, which is flat there, reaches about 1e-5


def drawn_law(random):
    alpha, beta = random.uniform(0.25, 0.45), random.uniform(0.25, 0.45)
    A, B = random.uniform(300, 900), random.uniform(300, 2000)
    compute = 10 ** random.uniform(18, 24)
    return f"another law, C = {compute:g}", (compute, random.uniform(1, 2), A, B, alpha, beta)


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


def spend(solve, *law) -> dict:
    """The pair as two numbers, and the budget's share that it spends."""
    answer = solve(*law)
    if isinstance(answer, np.ndarray):
        answer = tuple(answer.tolist())
    return {"returned": answer}


class Optimum(Exercise):
    def problem(self, trace, case):
        found = super().problem(trace, case)
        if not found and not math.isclose(self.spent(trace["returned"], case), 1, rel_tol=BUDGET):
            return "returned", self.complaint("returned", trace["returned"], None, case)
        return found

    def spent(self, pair, case) -> float:
        return 6 * float(pair[0]) * float(pair[1]) / case.arguments[0]

    def complaint(self, facet, found, right, case) -> NotRight:
        if not (isinstance(found, list | tuple) and len(found) == 2 and all(map(is_number, found))):
            return NotRight(f"returned {found!r}", "Return two numbers: parameters and tokens.")
        N, D = map(float, found)
        right, spent = lowest(*case.arguments), self.spent(found, case)
        words = f"you returned N = {N:.4g}, D = {D:.4g}"
        if not (math.isfinite(spent) and N > 0 and D > 0):
            hint = "Both are positive in a right answer: which number did you raise to which power?"
            return NotRight(words, hint)
        words += f": 6 N D is {spent * case.arguments[0]:.4g} FLOPs"
        for name, other, one, best in zip("ND", "DN", (N, D), right, strict=True):
            if math.isclose(one, best, rel_tol=NEAR):
                return NotRight(words, f"{name} is right. What does the budget leave for {other}?")
        if not math.isclose(spent, 1, rel_tol=BUDGET):
            hint = f"That costs {spent:.3g} times the budget. Which D is left, once N is chosen?"
            return NotRight(words, hint)
        E, A, B, alpha, beta = case.arguments[1:]
        mine, least = (E + A / n**alpha + B / d**beta for n, d in ((N, D), right))
        words += f", a loss of {mine:.5f}; the same budget can reach {least:.5f}"
        if math.isclose(N, right[0], rel_tol=0.02):
            return NotRight(words, f"Nearly: the answer must be right within {NEAR:g}. The loss is "
                            "flat at its lowest point: use a fine grid there, or compare the two "
                            "slopes instead.")  # fmt: skip
        more = right[1] > D
        way = "a smaller model on more tokens" if more else "a larger model on fewer tokens"
        hint = f"The budget is kept; {way} would have a lower loss. What are both slopes here?"
        return NotRight(words, hint)


def guess(factor: Callable, power: Callable = lambda a, b: a, six: float = 6) -> Callable:
    """The pair N = factor · (C/6)^power, and D = C / 6N."""

    def pair(compute, E, A, B, alpha, beta):
        root = 1 / (alpha + beta)
        N = factor(A, B, alpha, beta, root) * (compute / six) ** power(beta * root, alpha * root)
        return N, compute / six / N

    return pair


def ratio(A, B, alpha, beta, root) -> float:
    return (alpha * A / (beta * B)) ** root


SIX = "How many FLOPs does one parameter cost for one token?"
optimal = Optimum(
    name="optimal",
    right=lowest,
    play=spend,
    close=NEAR,
    draw=drawn_law,
    cases=tuple((f"{words}, C = {law[0]:g}", law) for words, *law in (
        # C, E, A, B, alpha, beta
        ("Chinchilla's budget", 5.76e23, 1.69, 406.4, 410.7, 0.34, 0.28),
        ("a small budget", 1e15, 1.82, 482.0, 2085.0, 0.348, 0.366),
        ("both exponents the same", 1e21, 1.5, 300.0, 900.0, 0.3, 0.3),
        ("data matter little", 1e20, 2.0, 500.0, 50.0, 0.5, 0.2),
    )),
    slips=(
        (lambda *law: lowest(*law)[::-1], "Which of the two comes first?"),
        (guess(ratio, six=1), SIX),
        (lambda *law: (6 * lowest(*law)[0], lowest(*law)[1]), SIX),
        (lambda *law: (lowest(*law)[0], 6 * lowest(*law)[1]), SIX),
        (guess(ratio, six=36), SIX + " You have taken it off twice."),
        (lambda *law: (lowest(*law)[0], lowest(*law)[1] / 6), SIX + " You have taken it off "
         "twice."),
        (guess(ratio, lambda a, b: b), "Think of the case alpha > beta: more parameters help "
         "quickly and then no more. Which of N and D should grow faster with the budget?"),
        (guess(lambda *law: 1 / ratio(*law)), "The powers of the budget are right; the factor "
         "before them is upside down. If A grows, should the model be larger or smaller?"),
        (guess(lambda A, B, alpha, beta, root: (A / B) ** root), "At this point the two terms of "
         "the loss are equal. Is the loss lowest there? Lagrange compares the gain from a little "
         "more of each."),
        (guess(lambda A, B, alpha, beta, root: alpha * A / (beta * B)), "The powers of the budget "
         "are right. Your factor is from an equation for N^(alpha + beta)."),
        (guess(lambda *law: 1), "The powers of the budget are right, and the factor before them is "
         "missing: what of A and B?"),
        (guess(lambda *law: 1, lambda a, b: 0.5), "As many parameters as tokens: how large is the "
         "loss there?"),
        (lambda compute, *law: ((compute / 120) ** 0.5, 20 * (compute / 120) ** 0.5), "20 tokens "
         "per parameter is a rule of thumb for another law than this."),
    ),
)  # fmt: skip
