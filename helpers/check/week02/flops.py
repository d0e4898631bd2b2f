"""Exercise of week 2: the FLOPs of training, compared with PyTorch's count of a real step."""

from functools import cache

import torch

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.measure.flops import flops_of
from helpers.models.config import GPTConfig
from helpers.models.gpt import build, loss_sum
from helpers.models.parameter_counts import parameters

# Explicit attention computes nothing twice; fused attention computes its scores again.
SMALL = {"vocab": 56, "context": 24, "width": 32, "heads": 4, "attention": "explicit"}
CASES = (
    ("a GPT of GPT-2's kind", {"layers": 2, "mlp": "gelu", "norm": "layer", "bias": True}, 16),
    ("one layer", {"layers": 1, "mlp": "gelu", "positions": "learned"}, 24),
    ("a single token", {"layers": 2, "mlp": "gelu"}, 1),
    ("SwiGLU", {"layers": 2, "mlp": "swiglu", "hidden": 72}, 16),
    ("grouped queries", {"layers": 3, "mlp": "gelu", "kv_heads": 2}, 16),
    ("a head of its own", {"layers": 2, "mlp": "gelu", "tied": False}, 16),
    ("as Llama 3", {"layers": 2, "kv_heads": 1, "hidden": 96, "tied": False}, 20),
)


def count_flops(fn) -> Verdict:
    """Check `fn(config, tokens) -> FLOPs` of one sequence's forward and backward.

    The reference is PyTorch's counter, on real steps of small models. It counts matrix products.
    """
    cases = []
    for name, changes, tokens in (*CASES, *hidden.more(drawn)):
        config = GPTConfig(**{**SMALL, **changes})
        cases.append((name, (config, tokens), {"name": name}))
    return examine_here("count_flops", fn, cases, judge_flops)


def drawn(random):
    changes = {
        "layers": random.randint(1, 4),
        "mlp": random.choice(("gelu", "swiglu")),
        "hidden": 8 * random.randint(8, 20),
        "kv_heads": random.choice((1, 2, 4)),
        "tied": random.random() < 0.5,
    }
    return "another model", changes, random.randint(2, 24)


@cache
def counted(config: GPTConfig, tokens: int) -> int:
    """Return the FLOPs of the products in one real step on one sequence."""
    model, ids = build(config), torch.zeros(1, tokens, dtype=torch.long)

    def step():
        loss, _ = loss_sum(model(ids), ids)
        loss.backward()

    return flops_of(step).model


def judge_flops(answer, config, tokens, name):
    if not is_number(answer):
        raise NotRight(f"returned {answer!r}", "Return one number of FLOPs.")
    right = counted(config, tokens)
    if answer != right:
        raise NotRight(
            f"{tokens} tokens, {config.layers} layers of width {config.width}, {config.heads} "
            f"heads ({config.key_heads} of keys and values), MLP {config.mlp} of {config.inner}, "
            f"vocab {config.vocab}\n  you returned {answer:,.12g} FLOPs; PyTorch counted {right:,} "
            f"in a forward and a backward",
            hint_flops(answer, right, config, tokens),
        )


def hint_flops(answer, right, config, tokens) -> str:
    """Return the hint for the common mistake that gives this answer."""
    of_the_whole = [
        (right / 3, "That is as much as a forward. Which other products does training compute?"),
        (right * 2 / 3, "The backward wants two gradients for each product of the forward."),
        (right * 4 / 3, "That is one forward more, as if all activations were computed again."),
        (right / 2, "How many FLOPs is one multiply-add?"),
        (right / tokens, "A whole sequence has more than one token: count them all."),
    ]
    for value, hint in of_the_whole:
        if answer == value != right:
            return hint
    for multiply_adds, hint in differences(config, tokens):
        if answer == right + 6 * multiply_adds:  # 2 FLOPs, three times
            return hint
    return (
        "List the products of one layer as (T, in) × (in, out), attention's for each head, and "
        "the product after the last layer. Print the parts of your sum: which part surprises you?"
    )


def differences(config: GPTConfig, tokens: int) -> list[tuple[float, str]]:
    """Return, for each mistake, its difference in multiply-adds of the forward, and its hint."""
    c, d = config, config.head_width
    swiglu, every = c.mlp == "swiglu", c.layers * tokens
    keys = every * 2 * c.width * c.key_heads * d  # keys and values
    scores = every * 2 * tokens * c.heads * d  # scores, and the sums of values that they weigh
    matrix = every * c.width * c.inner  # one matrix of the MLP
    default = every * (3 if swiglu else 2) * c.width * (4 * c.width - c.inner)
    head = tokens * c.vocab * c.width
    blocks = parameters(c).non_embedding
    idle = tokens * (parameters(c).total - blocks) - head  # parameters outside every product
    no_parameters = "Which products of attention have no parameters?"
    not_every = "Not every parameter is in a product: which are only added, or looked up?"
    return [
        (-scores, f"Your sum has all matrices with parameters. {no_parameters}"),
        (-scores - head, f"6 N, with N the blocks' matrices. {no_parameters} And what comes after "
         "the last block?"),
        (idle - scores, f"6 N, with N all parameters. {not_every} {no_parameters}"),
        (idle, not_every),
        (scores * (c.key_heads / c.heads - 1), "There are fewer heads of keys. But how "
         "many heads of queries are compared with keys?"),
        (-scores / 2, "Half of attention's products are missing. How many does a head compute? "
         "And does a product skip what is masked afterwards?"),
        (scores / tokens - scores, "How many scores are there if every token looks at every "
         "other?"),
        (head, "You count a table too many: what happens to a token before the first block?"),
        (-head, "The blocks are right. How does the last vector become logits? A shared "
         "matrix is multiplied as well."),
        (-matrix if swiglu else matrix, "How many matrices does this kind of MLP have?"),
        (default, "How wide is this MLP inside? `width` does not show it."),
        (keys * (c.heads // c.key_heads - 1), "You count as if every query head had its own "
         "keys and values. How many heads of keys are there?"),
    ]  # fmt: skip
