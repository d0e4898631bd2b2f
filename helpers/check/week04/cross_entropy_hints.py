"""What a wrong loss, or a wrong gradient of logits, says about the mistake."""

import math

from helpers.check.week04.cross_entropy_values import LOWERED
from helpers.check.week04.kinds import INFINITE, OTHER, ROUNDED

LOCAL = (
    "That is a softmax over this rank's part of the vocabulary alone. Which sum in the softmax "
    "runs over the whole vocabulary?"
)
IGNORED_HINT = "A place whose target is -100 counts for nothing. Where does your sum include it?"
SHIFT = (
    "A target counts from the first token of the vocabulary, a row from this rank's first token. "
    "Which row is the target's?"
)
EVERY = (
    "Each target has its logit on one rank only. What must the other ranks contribute to the sum?"
)
MISSING = "On the other ranks the target's logit is missing. How does it reach them?"
MAXIMUM = (
    "Each rank has subtracted its own maximum, and then you added exponentials. Which maximum must "
    "all ranks subtract?"
)
SUM = "Return the sum over the places with a target, not a mean: the caller divides once."
TIMES = {
    "N times": "Summed over ranks that all had the whole number. Which all-reduce is too much?",
    "divided by N": "Divided by N. Which of your sums is over the ranks, and already whole?",
}
LOSS = {
    "ignored places counted": IGNORED_HINT,
    "the mean": SUM,
    "the mean over all places": SUM,
    "not summed": SUM,
    "local softmax, own targets": LOCAL,
    "local softmax, summed": LOCAL,
    "local softmax": LOCAL,
    "local softmax, own maximum": LOCAL,
    "own targets": "That is the loss of this rank's own targets. Every rank needs the whole loss.",
    "own target's logit": MISSING,
    "each rank's maximum": MAXIMUM,
    "each rank's maximum, put back": MAXIMUM,
    "every rank's row": EVERY,
    "rows not shifted": SHIFT,
    **TIMES,
}
GRADIENT = {
    "ignored places": IGNORED_HINT,
    "softmax alone, ignored places too": "Softmax alone. What does the target's own logit add, and "
    "what is the gradient at a place whose target is -100?",
    "local softmax": LOCAL,
    "local softmax, own targets": LOCAL,
    "softmax alone": "Softmax alone is the gradient of the logarithm of the sum. What does the "
    "target's own logit add?",
    "own targets": "Each rank's logits are in every token's sum, also where another rank has the "
    "target. Which places are zero in your gradient?",
    "every rank's row": "You subtract 1 on each rank. On which rank is the target's row?",
    "rows not shifted": SHIFT,
    "the mean": SUM,
    "the mean over all places": SUM,
    "the sign": "The sign is wrong: a larger logit of the target makes the loss smaller.",
    "all logits": "Return the gradient of this rank's logits only: (B, T, v).",
    **TIMES,
}
LAST = (
    "Write down for one token: the logarithm of a sum over the vocabulary, minus one logit. Which "
    "of the two needs all ranks?"
)


def hint_loss(kind: str, shown: float | None, sent: bool) -> str:
    """The hint for a loss of that kind.

    Args:
        shown: the loss, if it is one number.
        sent: whether there was any message.
    """
    if kind == INFINITE:
        if shown == -math.inf:
            return (
                "The logarithm of 0: too large a number was subtracted before exp. Is it the "
                "largest logit, or a sum of the ranks' largest? An all-reduce adds unless you name "
                "another operation."
            )
        return (
            "exp of a large logit overflows. Which number may you subtract from all logits of a "
            "token, on all ranks, without a change of the softmax?"
        )
    if kind == OTHER and not sent:
        return LOCAL
    return LOSS.get(kind.removesuffix(LOWERED)) or common(kind)


def hint_gradient(kind: str) -> str:
    """The hint for a gradient of that kind, where the loss is right."""
    if kind == INFINITE:
        return (
            "exp overflows in the gradient. Use the logits of the loss, from which the largest "
            "was subtracted."
        )
    return GRADIENT.get(kind) or common(kind)


def common(kind: str) -> str:
    if kind == ROUNDED:
        return "The logits are in float64. Which line makes a tensor of another dtype?"
    if kind.startswith("of shape"):
        return "A wrong shape. Over which dims do you sum?"
    return LAST
