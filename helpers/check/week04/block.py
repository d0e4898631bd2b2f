"""Exercises of week 4: bytes that a rank sends and keeps for one block, beside a real block.

The reference is measured: a forward and backward of a block on four real ranks. Its calls are
counted, each with the bytes that a ring sends for it, and what autograd saved.

Source of the formulas: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", arXiv:2205.05198, table 2.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache

import torch

from helpers.check import hidden
from helpers.check.exercise import Case as Call
from helpers.check.exercise import Number
from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.plans.activation_memory import block_activations
from helpers.runtime.launch import launch

RANKS = 4  # they make up one group of 4, two groups of 2, or four of 1
DTYPES = {4: torch.float32, 8: torch.float64}
WAYS = {
    "tensor": (tensor_parallel, {}),
    "sequence, kept": (sequence_parallel, {"again": False}),
    "sequence, again": (sequence_parallel, {"again": True}),
}


@dataclass(frozen=True)
class Case:
    """What a student's function is asked: its arguments, in order."""

    config: GPTConfig
    sequences: int
    tokens: int
    ranks: int
    way: str
    bytes_per_number: int

    def arguments(self) -> tuple:
        return tuple(getattr(self, one.name) for one in fields(self))

    def title(self) -> str:
        title = f"{self.way}, {self.ranks} rank{'s' * (self.ranks > 1)}"
        recompute = self.config.recompute
        title += f", recomputation {recompute}" * (recompute != "none")
        return title + ", dropout" * bool(self.config.dropout)


def asked(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The cases; while grading, with other numbers of sequences."""
    return tuple(replace(one, sequences=one.sequences + hidden.shift(4)) for one in cases)


@cache
def measure(cases: tuple[Case, ...]) -> dict[Case, tuple[float, int]]:
    """Run all cases on ranks, in one launch: the bytes that a rank sent, and those that it kept."""
    runs = launch(run_cases, RANKS, device="cpu", cases=cases)
    return dict(zip(cases, runs[0], strict=True))


def run_cases(worker, cases: Iterable[Case]) -> list[tuple[float, int]]:
    torch.set_num_threads(1)
    meshes = {n: make_mesh(Layout(dp=RANKS // n, tp=n)) for n in sorted({c.ranks for c in cases})}
    return [run_block(case, meshes[case.ranks]) for case in cases]


def run_block(case: Case, mesh) -> tuple[float, int]:
    """One forward and backward of a model's only block, without embedding, head and loss."""
    transform, options = WAYS[case.way]
    dtype, config = DTYPES[case.bytes_per_number], replace(case.config, layers=1)
    model, _ = transform(config, 0, mesh, dtype, **options)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    whole = torch.zeros(case.sequences, case.tokens, dtype=torch.long)
    positions = model.locate(whole)
    model.first = model.last = False  # now it is like a stage in the middle of a pipeline
    tokens = case.tokens if case.way == "tensor" else case.tokens // case.ranks
    x = torch.ones(case.sequences, tokens, config.width, dtype=dtype, requires_grad=True)
    with ledger() as log:
        memory = memory_of(lambda: model(x, positions).sum().backward(), model)
    return log.wire, memory.activations


@dataclass(frozen=True, kw_only=True)
class OfBlock(Number):
    """A number of bytes that is measured; `right` is the formula, from which mistakes start.

    Attributes:
        blocks: what is asked and measured.
        which: 0: what the rank sent; 1: what it kept.
        did: words for it.
    """

    blocks: tuple[Case, ...]
    which: int
    did: str
    unit: str = "bytes"
    cases: tuple = ()

    def asked(self):
        return [Call(one.title(), one.arguments()) for one in asked(self.blocks)]

    def expected(self, case):
        return {"returned": measure(asked(self.blocks))[Case(*case.arguments)][self.which]}

    def words(self, found, right, config, sequences, tokens, ranks, way, each):
        return (
            f"{sequences} x {tokens} tokens of width {config.width}, {config.heads} heads, "
            f"F = {config.inner}, {each} bytes a number\n"
            f"  you returned {found:,.10g} bytes; {self.did} {right:,.10g} on each rank"
        )

    def __post_init__(self):
        object.__setattr__(self, "say", self.words)


def block(defaults: dict, way: str, ranks: int, number: int = 4, **changes) -> Case:
    config = GPTConfig(**{"vocab": 8, "layers": 3, **defaults, **changes})
    return Case(config, 3, config.context, ranks, way, number)


def sent_bytes(config, sequences, tokens, ranks, way, bytes_per_number):
    passes = 8 + 2 * (way == "sequence, again") + 4 * (config.recompute == "full")
    return around(config, sequences, tokens, ranks, bytes_per_number) * passes


def around(config, sequences, tokens, ranks, each) -> float:
    """One ring's pass around a B T D tensor: half of an all-reduce."""
    return (ranks - 1) / ranks * sequences * tokens * config.width * each


def one(g) -> float:
    return around(g.config, g.sequences, g.tokens, g.ranks, g.bytes_per_number)


def is_full(g) -> bool:
    return g.config.recompute == "full"


def is_cut(g) -> bool:
    return g.way != "tensor"


COUNTED = "Return bytes. You counted numbers."
EACH = "How many bytes does each number have? It is an argument."
RING = (
    "These are the bytes of the buffers. How often does a ring send each byte of an all-reduce, "
    "and of an all-gather? It depends on N."
)
REPLACED = (
    "A reduce-scatter or an all-gather sends half of an all-reduce. How many of them are there for "
    "each all-reduce that they replace?"
)
AGAIN = (
    "The backward gathers inputs a second time. How many layers' inputs does a block gather, and "
    "how many bytes is that?"
)
FULL = "Full recomputation runs the forward again. Which messages does that send again?"
NOBODY = "One rank has nobody to send to. Which factor of a ring is zero for one rank?"
ALL_RANKS = "Count the bytes of one rank, not those of all ranks."
ALL_LAYERS = "Count one block, not all layers."
SMALL = {"context": 16, "width": 32, "heads": 4, "hidden": 104}
message_bytes = OfBlock(
    name="message_bytes",
    right=sent_bytes,
    which=0,
    did="in a forward and a backward of one block, the messages had",
    close=1e-9,
    blocks=(
        block(SMALL, "tensor", 4),
        block(SMALL, "tensor", 2),
        block(SMALL, "tensor", 4, number=8, width=24, mlp="gelu"),
        block(SMALL, "tensor", 2, recompute="selective"),
        block(SMALL, "tensor", 4, recompute="full"),
        block(SMALL, "sequence, kept", 4),
        block(SMALL, "sequence, again", 4),
        block(SMALL, "sequence, again", 2, number=8, recompute="full"),
        block(SMALL, "tensor", 1),
    ),
    slips=(
        (lambda b, g: g(bytes_per_number=1), COUNTED),
        (lambda b, g: g(bytes_per_number=2), EACH),
        (lambda b, g: g(bytes_per_number=4), EACH),
        (lambda b, g: b * g.ranks / max(g.ranks - 1, 1), RING),
        (lambda b, g: b * g.ranks / max(g.ranks - 1, 1) / 2, RING),
        (lambda b, g: sent_bytes(g.config, g.sequences, g.tokens, 10**18, g.way,
                                 g.bytes_per_number), RING),
        (lambda b, g: sent_bytes(g.config, g.sequences, g.tokens, 10**18, g.way,
                                 g.bytes_per_number) / 2, RING),
        (lambda b, g: b * (16 / 12 if is_full(g) and g.way == "tensor" else 1), "With full "
         "recomputation, the forward runs twice, and the backward once."),
        (lambda b, g: b + 4 * one(g) * is_full(g), "With full recomputation, the forward runs "
         "twice, and the backward once."),
        (lambda b, g: b - 4 * one(g) * is_full(g), FULL),
        (lambda b, g: b + 4 * one(g) * (g.config.recompute == "selective"), "Selective "
         "recomputation runs the core of attention again: scores, softmax, and the sums of values. "
         "Which of its products leaves the rank?"),
        (lambda b, g: b - 2 * one(g) * (g.way == "sequence, again"), AGAIN),
        (lambda b, g: b - one(g) * (g.way == "sequence, again"), AGAIN),
        (lambda b, g: b + 2 * one(g) * (g.way == "sequence, again"), "Too many gathers in the "
         "backward. Which layers gather their input: the column-parallel ones, the row-parallel "
         "ones, or both?"),
        (lambda b, g: b + 2 * one(g) * (g.way == "sequence, kept"), "That gathers the inputs "
         "twice. In this way the gathered inputs are kept for the backward."),
        (lambda b, g: b / (2 if is_cut(g) else 1), REPLACED),
        (lambda b, g: b * (2 if is_cut(g) else 1), REPLACED),
        (lambda b, g: b / (g.ranks if is_cut(g) else 1), "Divided by N. How large is the tensor "
         "that the ranks gather or reduce: T tokens, or T/N tokens?"),
        (lambda b, g: 8 * one(g), "Neither the second gather nor the recomputation is in it. Which "
         "messages does each way add?"),
        (lambda b, g: b / 2, "Half of the bytes. Count the all-reduces of the forward and of the "
         "backward, and how often a ring sends each byte of an all-reduce."),
        (lambda b, g: 4 * one(g), "Half of the bytes. Count the all-reduces of the forward and of "
         "the backward, and how often a ring sends each byte of an all-reduce."),
        (lambda b, g: b / 4, "A quarter of the bytes. Attention and MLP each end in a sum, in the "
         "forward. And what does the backward of each send?"),
        (lambda b, g: 2 * one(g), "A quarter of the bytes. Attention and MLP each end in a sum, in "
         "the forward. And what does the backward of each send?"),
        (lambda b, g: b * 2, "Twice the bytes. A backward of g sends nothing, and a forward of f "
         "sends nothing: which all-reduces are left?"),
        (lambda b, g: 16 * one(g), "Twice the bytes. A backward of g sends nothing, and a forward "
         "of f sends nothing: which all-reduces are left?"),
        (lambda b, g: b * g.ranks, ALL_RANKS),
        (lambda b, g: b * g.config.layers, ALL_LAYERS),
        (lambda b, g: b * g.config.inner / g.config.width, "Which width does the message have? The "
         "sum is taken after the row-parallel layer."),
        (lambda b, g: b or 1.0, NOBODY),
    ),
    last="List the messages: in the forward, then in the backward, for attention, then for the "
    "MLP. Beside each write its numbers, and how often a ring sends each number.",
)  # fmt: skip


def terms(config, sequences, tokens, ranks, way, bytes_per_number) -> dict[str, float]:
    """What a rank keeps of a block, in bytes, by term."""
    return block_activations(
        config,
        sequences,
        tokens,
        bytes_per_number=bytes_per_number,
        ranks=ranks,
        sharded=way != "tensor",
        again=way == "sequence, again",
    )


def kept_bytes(config, sequences, tokens, ranks, way, bytes_per_number):
    return sum(terms(config, sequences, tokens, ranks, way, bytes_per_number).values())


def term(g, name: str) -> float:
    return terms(g.config, g.sequences, g.tokens, g.ranks, g.way, g.bytes_per_number).get(name, 0)


def without(*names: str) -> Callable:
    return lambda b, g: b - sum(term(g, name) for name in names)


def times(name: str, factor: Callable) -> Callable:
    return lambda b, g: b + term(g, name) * (factor(g) - 1)


def recomputing(old: str, new: str) -> Callable:
    """The formula, with this recomputation taken for another."""

    def change(b, g):
        return g(config=replace(g.config, recompute=new)) if g.config.recompute == old else b

    return change


def full(value: Callable) -> Callable:
    """The formula, but for full recomputation."""
    return lambda b, g: value(g) if is_full(g) else b


def whole_input(g) -> float:
    return g.sequences * g.tokens * g.config.width * g.bytes_per_number


SCORES, INNER, INPUTS = "scores", "inside the MLP", "inputs of the layers"
HEADS, MASKS = "queries, keys, values", "dropout masks"
NORMS = (
    "Two tensors of B T D numbers are missing. Each norm needs its input for its backward, and the "
    "layer after the norm needs its own. A block has two of each."
)
WHICH = (
    "Full recomputation keeps the input of the block. How much of this input is on one rank, with "
    "tensor, and with sequence parallelism?"
)
OWN_SCORES = "Each head of each sequence has its own scores."
ONE_BYTE = "A mask has one byte for each number, whatever the number has."
GPT2 = {
    "context": 32, "width": 96, "heads": 8, "norm": "layer", "positions": "learned", "mlp": "gelu",
    "bias": True, "attention": "explicit",
}  # fmt: skip
activation_bytes = OfBlock(
    name="activation_bytes",
    right=kept_bytes,
    which=1,
    did="autograd kept",
    close=0.015,  # the norms' statistics and the causal mask are below 1.1 % in all cases
    blocks=(
        block(GPT2, "tensor", 1),
        block(GPT2, "tensor", 2),
        block(GPT2, "tensor", 4, dropout=0.1),
        block(GPT2, "tensor", 2, number=8, dropout=0.1, hidden=224),
        block(GPT2, "tensor", 4, recompute="selective"),
        block(GPT2, "sequence, kept", 4, dropout=0.1),
        block(GPT2, "sequence, again", 4, dropout=0.1, hidden=512),
        block(GPT2, "sequence, again", 2, recompute="selective"),
        block(GPT2, "tensor", 2, recompute="full"),
        block(GPT2, "sequence, kept", 4, recompute="full", number=8),
    ),
    slips=(
        (lambda b, g: g(bytes_per_number=1), COUNTED),
        (lambda b, g: g(bytes_per_number=2), EACH),
        (lambda b, g: g(bytes_per_number=4), EACH),
        (lambda b, g: g(config=replace(g.config, recompute="none")), "No recomputation is in it. "
         "What does a rank not keep with selective, and with full recomputation?"),
        (recomputing("selective", "none"), "Selective recomputation runs the core of attention "
         "again. Which large tensor of the core is then not kept?"),
        (recomputing("full", "none"), "Full recomputation runs the whole block again. From which "
         "tensor does it start?"),
        (recomputing("full", "selective"), "Full recomputation runs the whole block again. From "
         "which tensor does it start?"),
        (lambda b, g: b - term(g, HEADS) * (g.config.recompute == "selective"), "The core of "
         "attention runs again in the backward. From which tensors does it start?"),
        (full(whole_input), WHICH),
        (full(lambda g: whole_input(g) / g.ranks), WHICH),
        (lambda b, g: g(ranks=1, way="tensor"), "That is the whole block. Which tensors does a "
         "rank have only in part?"),
        (lambda b, g: g(way="sequence, again"), "You divide all of it by N. With tensor "
         "parallelism, which tensors are whole on every rank, between the layers?"),
        (lambda b, g: g(way=g.way if is_cut(g) else "sequence, again"), "You divide all of it by "
         "N. With tensor parallelism, which tensors are whole on every rank, between the layers?"),
        (lambda b, g: g(way="sequence, kept"), "Between the layers, tensor parallelism keeps every "
         "token on every rank: what do norms and dropout keep?"),
        (lambda b, g: g(way=g.way if is_cut(g) else "sequence, kept"), "Between the layers, tensor "
         "parallelism keeps every token on every rank: what do norms and dropout keep?"),
        (lambda b, g: g(way="tensor"), "That is tensor parallelism. What do norms and dropout see "
         "of the tokens, with sequence parallelism?"),
        (lambda b, g: g(way="sequence, again" if is_cut(g) else "tensor"), "All of it divided by "
         "N. The gathered inputs of the column-parallel layers are kept here: how many tokens do "
         "they have?"),
        (lambda b, g: g(way="sequence, kept" if is_cut(g) else "tensor"), "The gathered inputs are "
         "not kept here. How many tokens of a layer's input does a rank keep, to gather them "
         "again?"),
        (without(SCORES), "The scores are missing: a number for each pair of tokens and for each "
         "head."),
        (without("norms"), NORMS),
        (without(INPUTS), NORMS),
        (without(HEADS), "Attention's core needs queries, keys and values for its backward."),
        (without("input of the output layer"), "Attention's output layer needs its input for its "
         "weight's gradient."),
        (without(INNER), "Inside the MLP, GELU needs its input, and the second layer needs its "
         "own."),
        (without(MASKS), "The masks of the dropout are missing: one after attention, one after the "
         "MLP."),
        (times(MASKS, lambda g: g.bytes_per_number), ONE_BYTE),
        (times(MASKS, lambda g: 2), ONE_BYTE),
        (times(MASKS, lambda g: 0.5), "How many dropouts are in a block?"),
        (times(SCORES, lambda g: g.ranks), "The heads are cut over the ranks, and each head has "
         "its own scores."),
        (times(INNER, lambda g: g.ranks), "The MLP is cut inside: F/N columns are on one rank."),
        (times(HEADS, lambda g: g.ranks), "The heads are cut over the ranks, and with them "
         "queries, keys and values."),
        (times(SCORES, lambda g: 2), "The softmax needs its own output for its backward. Does "
         "anything need the scores before the softmax?"),
        (times(SCORES, lambda g: 2 + 1 / g.bytes_per_number), "As in the paper, with dropout on "
         "the scores. This block has none: which numbers for each pair of tokens are left?"),
        (times(SCORES, lambda g: 5 / g.bytes_per_number), "As in the paper, with dropout on the "
         "scores. This block has none: which numbers for each pair of tokens are left?"),
        (times(SCORES, lambda g: g.config.heads), "How many scores does each head have?"),
        (times(SCORES, lambda g: 1 / g.config.heads), OWN_SCORES),
        (times(SCORES, lambda g: 1 / g.sequences), OWN_SCORES),
        (times(INNER, lambda g: 0.5), "Inside the MLP, GELU needs its input, and the second layer "
         "needs its own: F numbers each."),
        (times(INNER, lambda g: 4 * g.config.width / g.config.inner), "How wide is the MLP inside? "
         "It need not be 4 D."),
        (times(INPUTS, lambda g: 2), "Queries, keys and values share one input. How often is it "
         "kept?"),
        (times(INPUTS, lambda g: 3), "Queries, keys and values share one input. How often is it "
         "kept?"),
        (lambda b, g: b * g.config.layers, ALL_LAYERS),
        (lambda b, g: b * g.ranks, ALL_RANKS),
    ),
    last="Go through the block from its input to its output. For each operation write down which "
    "tensors its backward needs, and how much of each is on one rank.",
)  # fmt: skip
