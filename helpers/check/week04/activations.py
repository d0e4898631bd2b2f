"""Exercise of week 4: the bytes that a rank keeps of one block, beside what autograd saved.

Source of the formulas: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", arXiv:2205.05198, table 2.
"""

import math
from dataclasses import replace

from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.check.week04.measured import NOT_USED, Case, asked, measure
from helpers.models.config import GPTConfig
from helpers.plans.activation_memory import block_activations

GPT2 = {
    "vocab": 8, "context": 32, "width": 96, "layers": 3, "heads": 8, "norm": "layer",
    "positions": "learned", "mlp": "gelu", "bias": True, "attention": "explicit",
}  # fmt: skip
BATCH = {"sequences": 3, "tokens": 32}
CLOSE = 0.015  # the norms' statistics and the causal mask are below 1.1 % in all cases


def case(way: str, ranks: int, number: int = 4, **changes) -> Case:
    config = GPTConfig(**{**GPT2, **changes})
    return Case(config=config, ranks=ranks, way=way, bytes_per_number=number, **BATCH)


CASES = (
    case("tensor", 1),
    case("tensor", 2),
    case("tensor", 4, dropout=0.1),
    case("tensor", 2, number=8, dropout=0.1, hidden=224),
    case("tensor", 4, recompute="selective"),
    case("sequence, kept", 4, dropout=0.1),
    case("sequence, again", 4, dropout=0.1, hidden=512),
    case("sequence, again", 2, recompute="selective"),
    case("tensor", 2, recompute="full"),
    case("sequence, kept", 4, recompute="full", number=8),
)


def activation_bytes(fn) -> Verdict:
    """Check `fn(config, sequences, tokens, ranks, way, bytes_per_number) -> bytes of a block`.

    The reference is what autograd saves in a real forward of a block.
    """
    cases = [(title(one), one.arguments(), {"case": one, "fn": fn}) for one in asked(CASES)]
    return examine_here("activation_bytes", fn, cases, judge_bytes)


def title(case: Case) -> str:
    return case.title() + ", dropout" * bool(case.config.dropout)


def judge_bytes(answer, *arguments, case: Case, fn):
    if not is_number(answer):
        raise NotRight(f"returned {answer!r}", "Return one number of bytes.")
    right = measure(asked(CASES))[case].kept
    if not math.isclose(answer, right, rel_tol=CLOSE):
        config = case.config
        raise NotRight(
            f"{case.sequences} x {case.tokens} tokens of width {config.width}, {config.heads} "
            f"heads, F = {config.inner}, {case.bytes_per_number} bytes a number\n"
            f"  you returned {answer:,.10g} bytes; autograd kept {right:,} on each rank",
            hint_bytes(answer, case, fn),
        )


def terms_of(case: Case, **changes) -> dict[str, float]:
    """The formula's terms for this case, or for the case with these changes."""
    changed = replace(case, **changes)
    return block_activations(
        changed.config,
        changed.sequences,
        changed.tokens,
        bytes_per_number=changed.bytes_per_number,
        ranks=changed.ranks,
        sharded=changed.way != "tensor",
        again=changed.way == "sequence, again",
    )


def bytes_of(case: Case, **changes) -> float:
    return sum(terms_of(case, **changes).values())


def hint_bytes(answer: float, case: Case, fn) -> str:
    """The hint for the common mistake that gives this answer."""
    terms, right = terms_of(case), bytes_of(case)
    if case.ignores_number(fn):
        return NOT_USED[math.isclose(answer, bytes_of(case, bytes_per_number=1), rel_tol=CLOSE)]
    small = 0.0
    if "norms" in terms:  # the causal mask, and 2 statistics beside D numbers of each norm's token
        small = terms["causal mask"] + terms["norms"] * 2 / (case.config.width + 2)
    for value, hint in candidates(case):
        least = value - 1.01 * small * max(1, value / right)
        told_apart = not math.isclose(value, right, rel_tol=CLOSE)
        if told_apart and least <= answer * (1 + 1e-9) <= value * (1 + 1e-6):
            return hint
    return (
        "Go through the block from its input to its output. For each operation write down which "
        "tensors its backward needs, and how much of each is on one rank."
    )


def candidates(case: Case) -> list[tuple[float, str]]:
    """Wrong answers, each with its hint."""
    terms, right = terms_of(case), bytes_of(case)
    return [
        *recomputation(case),
        *messages_between(case),
        *wrong_masks(case, terms, right),
        *((right - terms.get(name, 0), hint) for name, hint in LEFT_OUT.items()),
        *wrong_sizes(case, terms, right),
        (right * case.config.layers, "Count one block, not all layers."),
        (right * case.ranks, "Count the bytes of one rank, not those of all ranks."),
    ]  # fmt: skip


def recomputation(case: Case) -> list[tuple[float, str]]:
    """Answers for another recomputation."""
    config = case.config
    if config.recompute == "none":
        return []
    none = bytes_of(case, config=replace(config, recompute="none"))
    if config.recompute == "selective":
        inside = terms_of(case)["queries, keys, values"]
        return [
            (none, "Selective recomputation runs the core of attention again. Which large tensor "
             "of the core is then not kept?"),
            (bytes_of(case) - inside, "The core of attention runs again in the backward. From "
             "which tensors does it start?"),
        ]  # fmt: skip
    block_input = case.sequences * case.tokens * config.width
    whole = block_input * case.bytes_per_number
    which = (
        "Full recomputation keeps the input of the block. How much of this input is on one rank, "
        f"with {case.way.split(',')[0]} parallelism?"
    )
    return [
        (none, "Full recomputation runs the whole block again. From which tensor does it start?"),
        (whole, which),
        (whole / case.ranks, which),
    ]


def messages_between(case: Case) -> list[tuple[float, str]]:
    """Answers for another way, or for no way at all."""
    whole = bytes_of(case, ranks=1, way="tensor")
    result = [
        (whole, "That is the whole block. Which tensors does a rank have only in part?"),
    ]
    if case.way == "tensor":
        result += [
            (bytes_of(case, way="sequence, again"), "You divide all of it by N. With tensor "
             "parallelism, which tensors are whole on every rank, between the layers?"),
            (bytes_of(case, way="sequence, kept"), "Between the layers, tensor parallelism keeps "
             "every token on every rank: what do norms and dropout keep?"),
        ]  # fmt: skip
    else:
        result += [
            (bytes_of(case, way="tensor"), "That is tensor parallelism. What do norms and dropout "
             "see of the tokens, with sequence parallelism?"),
            (bytes_of(case, way="sequence, again"), "All of it divided by N. The gathered inputs "
             "of the column-parallel layers are kept here: how many tokens do they have?"),
            (bytes_of(case, way="sequence, kept"), "The gathered inputs are not kept here. How "
             "many tokens of a layer's input does a rank keep, to gather them again?"),
        ]  # fmt: skip
    return result


NORMS = (
    "Two tensors of B T D numbers are missing. Each norm needs its input for its backward, and the "
    "layer after the norm needs its own. A block has two of each."
)
LEFT_OUT = {
    "scores": "The scores are missing: a number for each pair of tokens and for each head.",
    "norms": NORMS,
    "inputs of the layers": NORMS,
    "queries, keys, values": "Attention's core needs queries, keys and values for its backward.",
    "input of the output layer": "Attention's output layer needs its input for its weight's "
    "gradient.",
    "inside the MLP": "Inside the MLP, GELU needs its input, and the second layer needs its own.",
}


def wrong_masks(case: Case, terms, right: float) -> list[tuple[float, str]]:
    """Answers with the masks of the dropout left out, or of a wrong size."""
    masks = terms.get("dropout masks", 0)
    return [
        (right - masks, "The masks of the dropout are missing: one after attention, one after the "
         "MLP."),
        (right + masks * (case.bytes_per_number - 1), "A mask has one byte for each number, "
         "whatever the number has."),
        (right - masks / 2, "How many dropouts are in a block?"),
    ]  # fmt: skip


def wrong_sizes(case: Case, terms, right: float) -> list[tuple[float, str]]:
    """Answers with a term of a wrong size."""
    config, n, e = case.config, case.ranks, case.bytes_per_number
    scores, inner = terms.get("scores", 0), terms.get("inside the MLP", 0)
    return [
        (right + (n - 1) * scores, "The heads are cut over the ranks, and each head has its own "
         "scores."),
        (right + (n - 1) * inner, "The MLP is cut inside: F/N columns are on one rank."),
        (right + (n - 1) * terms.get("queries, keys, values", 0), "The heads are cut over the "
         "ranks, and with them queries, keys and values."),
        (right + scores, "The softmax needs its own output for its backward. Does anything need "
         "the scores before the softmax?"),
        (right + scores * (e + 1) / e, "As in the paper, with dropout on the scores. This block "
         "has none: which numbers for each pair of tokens are left?"),
        (right + scores * (config.heads - 1), "How many scores does each head have?"),
        (right + scores * (1 / config.heads - 1), "Each head has its own scores."),
        (right + scores * (1 / case.sequences - 1), "Each sequence has its own scores."),
        (right - inner / 2, "Inside the MLP, GELU needs its input, and the second layer needs its "
         "own: F numbers each."),
        (right + inner * (4 * config.width / config.inner - 1), "How wide is the MLP inside? It "
         "need not be 4 D."),
        (right + 2 * terms.get("inputs of the layers", 0), "Queries, keys and values share one "
         "input. How often is it kept?"),
    ]  # fmt: skip
