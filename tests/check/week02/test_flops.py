"""FLOPs of training: the solution passes, and common mistakes fail with their own hint."""

import pytest

from helpers import check
from helpers.models.config import GPTConfig
from helpers.models.counts import flops_per_token
from helpers.models.parameter_counts import parameters
from notebooks.solutions import week02
from tests.check.asked import asked, drawn_anew


def parts(config, tokens):
    """Forward FLOPs by part: queries and outputs, keys and values, scores, one MLP matrix, head."""
    c, d = config, config.head_width
    every = 2 * c.layers * tokens
    return {
        "queries": every * 2 * c.heads * d * c.width,
        "keys": every * 2 * c.key_heads * d * c.width,
        "scores": every * 2 * tokens * c.width,
        "matrix": every * c.width * c.inner,
        "head": 2 * tokens * c.vocab * c.width,
    }


def plus(**factors):
    """The right answer with some parts more or less: functions of the config, or numbers."""

    def solve(config, tokens):
        p = parts(config, tokens)
        more = {k: f(config) if callable(f) else f for k, f in factors.items()}
        return week02.count_flops(config, tokens) + 3 * sum(p[k] * f for k, f in more.items())

    return solve


def times(factor):
    return lambda config, tokens: week02.count_flops(config, tokens) * factor


def six_n(attention):
    def solve(config, tokens):
        scores = 12 * config.layers * config.width * tokens * attention
        return tokens * (6 * parameters(config).total + scores)

    return solve


def scores_linear(config, tokens):
    p = parts(config, tokens)
    return week02.count_flops(config, tokens) - 3 * (p["scores"] - p["scores"] // tokens)


def width_assumed(config, tokens):
    wide = GPTConfig(**{**vars(config), "hidden": 4 * config.width})
    return week02.count_flops(wide, tokens)


MISTAKES = [
    (times(1 / 3), "as much as a forward"),
    (times(2 / 3), "wants two gradients"),
    (times(4 / 3), "computed again"),
    (times(1 / 2), "one multiply-add"),
    (lambda c, t: week02.count_flops(c, t) // t, "A whole sequence"),
    (plus(scores=-1 / 2), "what is masked afterwards"),
    (plus(scores=-1), "have no parameters"),
    (plus(scores=-1, head=-1), "with N the blocks' matrices"),
    (scores_linear, "every token looks at every other"),
    (six_n(0), "with N all parameters"),
    (six_n(1), "only added, or looked up"),
    (plus(head=1), "before the first block"),
    (plus(head=-1), "How does the last vector become logits"),
    (plus(head=lambda c: -c.tied), "How does the last vector become logits"),
    (plus(head=lambda c: not c.tied), "before the first block"),
    (plus(matrix=lambda c: -(c.mlp == "swiglu")), "How many matrices"),
    (plus(matrix=lambda c: c.mlp == "gelu"), "How many matrices"),
    (width_assumed, "How wide is this MLP"),
    (plus(keys=lambda c: c.heads // c.key_heads - 1), "its own keys and values"),
    (plus(scores=lambda c: c.key_heads / c.heads - 1), "heads of queries"),
    (times(1 + 1e-7), "Print the parts of your sum"),
    (lambda c, t: None, "Return one number"),
]


def test_the_solution_passes():
    verdict = check.count_flops(week02.count_flops)
    assert verdict, verdict


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.count_flops(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_the_solution_at_scale():
    """The package's count of GPT-3 and Llama 3; nothing is built."""
    for name in ("175B", "8B"):
        config = GPTConfig.preset(name, attention="explicit")
        assert week02.count_flops(config, 2048) == 2048 * flops_per_token(config, 2048)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.count_flops, week02.count_flops))
