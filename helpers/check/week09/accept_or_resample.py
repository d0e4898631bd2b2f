"""Exercise of week 9: one guess of speculative decoding, accepted or replaced."""

import torch

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.inference.accept import residual

CLOSE = 1e-9  # float64, sums of some numbers below 1
BELOW_ONE = 1 - 2**-53

# The target's probabilities, the draft's, the guess.
LAWS = (
    ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), 1),
    ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), 0),
    ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), 0),
    ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), 1),
    ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), 2),
    ((0.0, 0.6, 0.4), (0.5, 0.25, 0.25), 0),
    ((0.25, 0.75), (0.25, 0.75), 1),
    ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0), 1),
)


def accept_or_resample(fn) -> Verdict:
    """Check `fn(p, q, guess, draw)`: the guess, or the probabilities of the token in its place.

    p and q are (V,) float64, the target's and the draft's; q drew the guess. `draw` is uniform in
    [0, 1). The answer is the guess, an int, if it is accepted; else a tensor (V,) that sums to 1.
    """
    calls = [call for law in (*LAWS, *hidden.more(drawn, 6)) for call in with_draws(*law)]
    cases = [("each pair of p and q, with several draws", (fn, calls), {})]
    return examine_here("accept_or_resample", every_answer, cases, judge)


def drawn(random):
    p, q = ([random.randint(1, 20) for _ in range(5)] for _ in range(2))
    return [n / sum(p) for n in p], [n / sum(q) for n in q], random.randrange(5)


def with_draws(p, q, guess):
    """The calls for one guess: draws around p/q, around other ratios, and at the ends."""
    p, q = (torch.tensor(law, dtype=torch.float64) for law in (p, q))
    ratio = float(p[guess] / q[guess])
    around = [0.98 * ratio, 1.02 * ratio, 0.98 / ratio if ratio else 1.0, float(p[guess]) * 1.02]
    draws = [draw for draw in (0.0, 0.3, 0.7, *around, BELOW_ONE) if draw < 1]
    return [(p, q, guess, draw) for draw in draws]


def every_answer(fn, calls):
    return [fn(p.clone(), q.clone(), guess, draw) for p, q, guess, draw in calls]


def right(p, q, guess, draw) -> bool:
    """Whether the guess is accepted."""
    return draw * float(q[guess]) < float(p[guess])


# Common wrong rules, and the hint for each.
RULES = (
    (lambda p, q, x, r: True, "No guess is ever rejected. Then the tokens are the draft's."),
    (lambda p, q, x, r: False, "No guess is ever accepted, although p ≥ q at some of them."),
    (
        lambda p, q, x, r: r * float(p[x]) < float(q[x]),
        "The ratio is upside down: the target's wish counts, relative to the draft's.",
    ),
    (
        lambda p, q, x, r: not right(p, q, x, r),
        "You reject the guesses that you should accept. In which direction is the comparison?",
    ),
    (
        lambda p, q, x, r: r < float(p[x]),
        "The draft has proposed this guess already with the probability q: divide by it.",
    ),
    (
        lambda p, q, x, r: r < float(q[x]),
        "The chance to accept must depend on the target's p too.",
    ),
    (
        lambda p, q, x, r: float(p[x]) >= float(q[x]),
        "A guess with p < q is accepted sometimes. How often, and what is the draw for?",
    ),
    (
        lambda p, q, x, r: x == int(p.argmax()),
        "This accepts the target's best token alone. The guess may be another one, with p > 0.",
    ),
    (
        lambda p, q, x, r: r * float(q[x]) <= float(p[x]),
        "A draw of 0 accepts a guess that is impossible for the target. Compare with <.",
    ),
)


def judge(answers, fn, calls):
    decisions = []
    for answer, (p, _, guess, _) in zip(answers, calls, strict=True):
        accepted = is_number(answer) or (isinstance(answer, torch.Tensor) and answer.dim() == 0)
        if accepted and float(answer) != guess:
            raise NotRight(
                f"returned the token {float(answer):g}; the guess was {guess}",
                "Return the guess itself, or else probabilities. Nothing is drawn here.",
            )
        if not accepted and not isinstance(answer, torch.Tensor):
            raise NotRight(
                f"returned {answer!r}",
                f"Return the guess, or a tensor of {len(p)} probabilities if it is rejected.",
            )
        decisions.append(accepted)
    judge_decisions(decisions, calls)
    for answer, accepted, call in zip(answers, decisions, calls, strict=True):
        if not accepted:
            judge_weights(answer, *call)


def judge_decisions(decisions, calls):
    wrong = [n for n, call in enumerate(calls) if decisions[n] != right(*call)]
    if not wrong:
        return
    p, q, guess, draw = calls[wrong[0]]
    said = "accepted" if decisions[wrong[0]] else "rejected"
    finding = (
        f"{said} a guess with p = {p[guess]:.3g} and q = {q[guess]:.3g}, for the draw {draw:.3g}"
    )
    for rule, hint in RULES:
        if decisions == [rule(*call) for call in calls]:
            raise NotRight(finding, hint)
    raise NotRight(finding, "Accept with the probability min(1, …). Of which ratio?")


def judge_weights(answer, p, q, guess, draw):
    words = f"p = {listed(p)}, q = {listed(q)}, the guess {guess} rejected"
    if answer.shape != p.shape:
        raise NotRight(
            f"{words}: a tensor of shape {tuple(answer.shape)}",
            f"Return one probability for each of the {len(p)} tokens.",
        )
    answer, expected = answer.double(), residual(p, q)
    if torch.allclose(answer, expected, rtol=0, atol=CLOSE):
        return
    raise NotRight(f"{words}: you return {listed(answer)}", hint(answer, p, q))


def hint(answer, p, q) -> str:
    """Which common mistake gives these weights?"""

    def same(weights):
        """Whether the answer is proportional to these weights."""
        scaled = answer * (weights.sum() / answer.sum())
        return torch.allclose(scaled, weights, rtol=0, atol=CLOSE)

    if not answer.isfinite().all():
        return "Some are not numbers: what do you divide by?"
    if (answer < 0).any():
        return "A probability cannot be negative. Where q > p, nothing is left of p."
    if same(p):
        return (
            "That is p itself. Accepted guesses have given the draft's favourites their share "
            "already: what is left of p?"
        )
    if same((p - q).clamp(min=0)):
        return "These do not sum to 1: renormalise what is left of p."
    if same(q):
        return "That is the draft's law: the token must come from what is left of the target's."
    if same((q - p).clamp(min=0)):
        return "That is what q has too much. What has p that q does not give?"
    if same((p - q).abs()):
        return "Where q > p, nothing is left of p: do not take the absolute value there."
    if abs(float(answer.sum()) - 1) > CLOSE:
        return "Probabilities sum to 1."
    return "What is left of p, where the draft's guesses give each token min(p, q)?"


def listed(law) -> str:
    return "(" + ", ".join(f"{float(one):.3g}" for one in law) + ")"
