"""FLOPs of training: the solution passes, and common mistakes fail with their own hint."""

import random

import pytest

from helpers import check
from helpers.check import hidden
from helpers.check.week02.flops import differences, drawn, hint_flops
from helpers.models.config import GPTConfig
from helpers.models.counts import flops_per_token
from helpers.models.parameter_counts import parameters
from notebooks.solutions import week02
from tests.check.alone import found_alone
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


def test_a_mistake_in_one_case_alone_is_found():
    """The FLOPs by hand: 6 for each multiply-add of the forward."""
    attention, mlp, head = 4 * 32 * 32, 2 * 32 * 128, 56 * 32
    found = found_alone(check.count_flops, week02.count_flops, times(1 + 1e-7))
    words = "{} layers of width 32, 4 heads ({} of keys and values), MLP {} of {}, vocab 56"
    rows = [
        ("a GPT of GPT-2's kind", 16, (2, 4, "gelu", 128), 2 * (attention + mlp + 2 * 16 * 32)),
        ("one layer", 24, (1, 4, "gelu", 128), attention + mlp + 2 * 24 * 32),
        ("a single token", 1, (2, 4, "gelu", 128), 2 * (attention + mlp + 2 * 32)),
        ("SwiGLU", 16, (2, 4, "swiglu", 72), 2 * (attention + 3 * 32 * 72 + 2 * 16 * 32)),
        ("grouped queries", 16, (3, 2, "gelu", 128), 3 * (3 * 32 * 32 + mlp + 2 * 16 * 32)),
        ("a head of its own", 16, (2, 4, "gelu", 128), 2 * (attention + mlp + 2 * 16 * 32)),
        ("as Llama 3", 20, (2, 1, "swiglu", 96),
         2 * (2 * 32 * 32 + 2 * 32 * 8 + 3 * 32 * 96 + 2 * 20 * 32)),
    ]  # fmt: skip
    for finding, (name, tokens, model, each) in zip(found, rows, strict=True):
        right = 6 * tokens * (each + head)
        start, end = finding.split("\n")
        assert start == f"{name}: {tokens} tokens, {words.format(*model)}"
        assert end.endswith(f"PyTorch counted {right:,} in a forward and a backward")
    assert "you returned 158,976.015898 FLOPs" in found[2]


def test_the_tests_of_grading_are_other_models():
    models = [drawn(random.Random(secret)) for secret in range(40)]
    for key, values in {"mlp": {"gelu", "swiglu"}, "kv_heads": {1, 2, 4}, "tied": {True, False},
                        "layers": {1, 2, 3, 4}}.items():  # fmt: skip
        assert {changes[key] for _, changes, _ in models} == values
    assert all(2 <= tokens <= 24 for _, _, tokens in models)
    assert len({changes["hidden"] for _, changes, _ in models}) > 5
    with hidden.drawn_from(4):
        assert len(found_alone(check.count_flops, week02.count_flops, times(1 / 2))) == 7 + 3


@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
def test_each_known_difference_is_told_apart(kind):
    """By its number; a difference of nothing is no mistake."""
    config = GPTConfig(vocab=56, context=24, width=32, layers=3, heads=4, kv_heads=2, mlp=kind,
                       hidden=88, positions="learned", attention="explicit")  # fmt: skip
    known = differences(config, 10)
    right = week02.count_flops(config, 10)
    for number, (multiply_adds, _) in enumerate(known):
        first = next(words for other, words in known if other == multiply_adds)
        assert hint_flops(right + 6 * multiply_adds, right, config, 10) == first, number
    assert "Print the parts" in hint_flops(right + 6, right, config, 10)


def test_the_hint_for_a_share_of_the_right_answer():
    config = GPTConfig(vocab=56, context=24, width=32, layers=3, heads=4, attention="explicit")
    right = week02.count_flops(config, 12)
    for answer, hint in (
        (right / 3, "as much as a forward"),
        (right * 2 / 3, "two gradients"),
        (right * 4 / 3, "computed again"),
        (right / 2, "one multiply-add"),
        (right / 12, "count them all"),
    ):
        assert hint in hint_flops(answer, right, config, 12)
