"""Exercises of week 4 on a transformed block: its partial gradients; the bytes it sends and keeps.

The bytes are measured: a forward and backward of a block on four real ranks. Its calls are
counted, each with the bytes that a ring sends for it, and what autograd saved.

Source of the formulas: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", arXiv:2205.05198, section 4.1.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.answers import is_number, plain
from helpers.check.exercise import Edit
from helpers.check.number import Number
from helpers.check.ranks import OnRanks, observed, sent
from helpers.check.verdict import NotRight
from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig, build
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.plans.activation_memory import block_activations
from helpers.runtime.launch import launch
from helpers.state.slicing import fill

# sum_partial_gradients

CONFIG = GPTConfig(
    vocab=36, context=12, width=24, layers=1, heads=12, norm="layer", positions="learned",
    mlp="gelu", bias=True,
)  # fmt: skip
FROZEN = "blocks.0.mlp_norm.bias"


def whole_model():
    """The batch and the model of one process: equal on every rank."""
    batch = random_batch(hidden.seed(2), 2, CONFIG.context, CONFIG.vocab, ignored=0.2)
    return batch, build(CONFIG, seed=hidden.seed(1), dtype=torch.float64)


def backward_of(model, batch):
    """Fill `.grad`, all but the frozen parameter's."""
    dict(model.named_parameters())[FROZEN].requires_grad_(False)
    loss, _ = model.loss(batch)
    loss.backward()


def run_sums(worker, solve):
    torch.set_num_threads(1)
    batch, twin = whole_model()
    mesh = make_mesh(Layout(tp=worker.world_size))
    model, parts = sequence_parallel(CONFIG, 1, mesh, torch.float64)
    model.to_empty(device="cpu")
    values = dict(twin.named_parameters())
    for name, parameter in model.named_parameters():
        fill(parts[name], parameter, values[name])
    backward_of(model, batch)
    cut = {name for name, part in parts.items() if part.cuts}
    _, seen = observed(solve, worker, model, cut)
    gradients = {name: plain(p.grad) for name, p in model.named_parameters() if name != FROZEN}
    return {
        "unwaited": seen["unwaited"],
        "gradients of cut parameters": {n: g for n, g in gradients.items() if n in cut},
        "gradients of whole parameters": {n: g for n, g in gradients.items() if n not in cut},
        "messages": seen["messages"],
    }


def judge_sent(trace, right, ranks, case):
    for rank, (messages, due) in enumerate(zip(trace["messages"], right["messages"], strict=True)):
        most = sum(nbytes for _, nbytes in due)
        if sum(nbytes for _, nbytes in messages) > most:
            raise NotRight(
                f"the right gradients, but rank {rank} sent {sent(messages)}; the partial sums "
                f"have {most:,} bytes",
                "Which gradients were complete already, or travelled twice?",
            )


def partial_sums(worker, model, cut):
    for name, parameter in model.named_parameters():
        if name not in cut and parameter.grad is not None:
            dist.all_reduce(parameter.grad)


CHOICE = "name not in cut and parameter.grad is not None"
CALL = "dist.all_reduce(parameter.grad)"
sum_partial_gradients = OnRanks(
    right=partial_sums,
    run=run_sums,
    cases=((2, {}), (3, {})),
    close=1e-12,
    patience=4,
    free=("messages",),
    rule=judge_sent,
    slips=(
        (Edit(CHOICE, "False"), "No message was sent. A norm saw this rank's T/N tokens only: what "
         "does its gradient lack?"),
        (Edit(CALL, "dist.all_reduce(parameter.grad.clone())"), "The sums were sent, and `.grad` "
         "is as before. Which tensor did the all-reduce write into?"),
        (Edit(CHOICE, CHOICE + " and 'norm' not in name"),
         Edit(CHOICE, CHOICE + " and name.endswith('.bias')"), "The gradients of norms are not "
         "summed. A norm saw this rank's T/N tokens only, and every rank has the same norm."),
        (Edit(CHOICE, CHOICE + " and 'norm' in name"), "A bias is missing. The bias of a "
         "row-parallel layer is added after the reduce-scatter: to how many tokens?"),
        (Edit(CHOICE, CHOICE + " and ('norm' in name or name.endswith('.bias'))"), "Some "
         "parameters are neither norms nor biases. Which tokens used them on this rank?"),
        (Edit(CHOICE, "parameter.grad is not None"),
         Edit(CHOICE, "name in cut and parameter.grad is not None"), "A cut parameter belongs to "
         "one rank, and its gradient was complete: the layer gathers all tokens before it "
         "multiplies. Which parameters does every rank have?"),
        (Edit(CALL, CALL + "\n            parameter.grad /= worker.world_size"),
         Edit(CALL, "parameter.grad /= worker.world_size"), "Divided by N. The ranks saw different "
         "tokens of one sum. Does one process take the mean over groups of its tokens?"),
        (Edit(CHOICE, "name not in cut"), "A frozen parameter has no gradient: its `.grad` is None "
         "on every rank."),
    ),
    last="Add up `.grad` over the ranks, in place. Which number has changed besides?",
)  # fmt: skip


# message_bytes and activation_bytes: of a block, measured

RANKS = 4  # they make up one group of 4, two groups of 2, or four of 1
DTYPES = {4: torch.float32, 8: torch.float64}
WAYS = {
    "tensor": (tensor_parallel, {}),
    "sequence, kept": (sequence_parallel, {"again": False}),
    "sequence, again": (sequence_parallel, {"again": True}),
}


@cache
def measure(cases: tuple[tuple, ...]) -> dict[tuple, tuple[float, int]]:
    """Run all cases on ranks, in one launch: the bytes that a rank sent, and those that it kept."""
    runs = launch(run_cases, RANKS, device="cpu", cases=cases)
    return dict(zip(cases, runs[0], strict=True))


def run_cases(worker, cases) -> list[tuple[float, int]]:
    torch.set_num_threads(1)
    meshes = {n: make_mesh(Layout(dp=RANKS // n, tp=n)) for n in sorted({c[3] for c in cases})}
    return [run_block(meshes[case[3]], *case) for case in cases]


def run_block(mesh, config, sequences, tokens, ranks, way, each) -> tuple[float, int]:
    """One forward and backward of a model's only block, without embedding, head and loss."""
    transform, options = WAYS[way]
    model, _ = transform(replace(config, layers=1), 0, mesh, DTYPES[each], **options)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    positions = model.locate(torch.zeros(sequences, tokens, dtype=torch.long))
    model.first = model.last = False  # now it is like a stage in the middle of a pipeline
    own = tokens if way == "tensor" else tokens // ranks
    x = torch.ones(sequences, own, config.width, dtype=DTYPES[each], requires_grad=True)
    with ledger() as log:
        memory = memory_of(lambda: model(x, positions).sum().backward(), model)
    return log.wire, memory.activations


FACTORS = {  # what a term may be multiplied with
    "N times as much": lambda g: g.ranks,
    "1/N of it": lambda g: 1 / g.ranks,
    "N times as much where the tokens are cut": lambda g: g.ranks if is_cut(g) else 1,
    "1/N of it where the tokens are cut": lambda g: 1 / g.ranks if is_cut(g) else 1,
    "as many bytes a number as all others": lambda g: g.bytes_per_number,
    **{f"{k:g} times as much": lambda g, k=k: k for k in (0.25, 0.5, 0.75, 1.25, 1.5, 2, 2.5, 3)},
}


@dataclass(frozen=True, kw_only=True)
class OfBlock(Number):
    """A number of bytes that is measured; `right` is the formula, from which mistakes start.

    Attributes:
        terms: `terms(*arguments)`: {name: bytes}; `right` is their sum.
        which: 0: what the rank sent; 1: what it kept.
    """

    terms: Callable
    which: int
    unit: str = "bytes"

    def expected(self, case):
        every = tuple(one.arguments for one in self.asked())
        return {"returned": measure(every)[case.arguments][self.which]}

    def quantities(self, case):
        found = asdict(case.arguments[0]) | super().quantities(case)
        return {name: value for name, value in found.items() if is_number(value)}

    def choices(self, case):
        return super().choices(case) | {"recompute": case.arguments[0].recompute}

    def fixed(self, cases):
        """Also yield mistakes in one term alone."""
        yield from super().fixed(cases)
        for name in dict.fromkeys(one for case in cases for one in self.terms(*case.arguments)):
            yield self.other(name, lambda g: 0), f"The bytes of {name} are missing."
            for words, factor in FACTORS.items():
                yield self.other(name, factor), f"Your bytes of {name}: {words}. Why?"

    def other(self, name: str, factor: Callable) -> Callable:
        """Return the formula with one term multiplied by factor(g)."""

        def change(b, g):
            given = (g.config, g.sequences, g.tokens, g.ranks, g.way, g.bytes_per_number)
            return b + self.terms(*given).get(name, 0) * (factor(g) - 1)

        return self.made(change)


def blocks(defaults: dict, *changes: dict) -> list[tuple[str, tuple]]:
    """The cases; while grading, with another number of sequences."""
    found = []
    for change in changes:
        given = {"vocab": 8, "layers": 3, "way": "tensor", "number": 4, **defaults, **change}
        way, ranks, number = (given.pop(name) for name in ("way", "ranks", "number"))
        config = GPTConfig(**given)
        title = f"{way}, {ranks} rank{'s' * (ranks > 1)}"
        title += f", recomputation {config.recompute}" * (config.recompute != "none")
        title += ", dropout" * bool(config.dropout)
        found.append((title, (config, 3 + hidden.shift(4), config.context, ranks, way, number)))
    return found


def say(did: str, found, right, config, sequences, tokens, ranks, way, each) -> str:
    return (
        f"{sequences} x {tokens} tokens of width {config.width}, {config.heads} heads, "
        f"F = {config.inner}, {each} bytes a number\n"
        f"  you returned {found:,.10g} bytes; {did} {right:,.10g} on each rank"
    )


def sent_terms(config, sequences, tokens, ranks, way, bytes_per_number) -> dict[str, float]:
    """What a rank sends for a block, in bytes: rings' passes around a B T D tensor."""
    ring = (ranks - 1) / ranks * sequences * tokens * config.width * bytes_per_number
    return {
        "attention's messages": 4 * ring,
        "the MLP's messages": 4 * ring,
        "the inputs that are gathered again": 2 * ring * (way == "sequence, again"),
        "the second forward": 4 * ring * (config.recompute == "full"),
    }


def sent_bytes(config, sequences, tokens, ranks, way, bytes_per_number):
    given = (config, sequences, tokens, ranks, way, bytes_per_number)
    return sum(sent_terms(*given).values())


def one(g) -> float:
    """One ring's pass around a B T D tensor: half of an all-reduce."""
    return buffers(g, 1) * (g.ranks - 1) / g.ranks


def buffers(g, passes: float) -> float:
    return g.sequences * g.tokens * g.config.width * g.bytes_per_number * passes


def is_full(g) -> bool:
    return g.config.recompute == "full"


def is_cut(g) -> bool:
    return g.way != "tensor"


def is_again(g) -> bool:
    return g.way == "sequence, again"


message_bytes = OfBlock(
    right=sent_bytes,
    terms=sent_terms,
    which=0,
    say=partial(say, "in a forward and a backward of one block, the messages had"),
    close=1e-9,
    cases=partial(
        blocks,
        {"context": 16, "width": 32, "heads": 4, "hidden": 104},
        {"ranks": 4},
        {"ranks": 2},
        {"ranks": 4, "number": 8, "width": 24, "mlp": "gelu"},
        {"ranks": 2, "recompute": "selective"},
        {"ranks": 4, "recompute": "full"},
        {"ranks": 2, "recompute": "full"},  # at 4 ranks, 16 of 12 passes are also 4/3
        {"ranks": 4, "way": "sequence, kept"},
        {"ranks": 4, "way": "sequence, again"},
        {"ranks": 2, "way": "sequence, again", "number": 8, "recompute": "full"},
        {"ranks": 1},
    ),
    slips=(
        (lambda b, g: b * g.ranks / max(g.ranks - 1, 1), lambda b, g: g(ranks=10**18),
         lambda b, g: b * g.ranks / max(g.ranks - 1, 1) / 2, lambda b, g: g(ranks=10**18) / 2,
         "These are the bytes of the buffers. How often does a ring send each byte of an "
         "all-reduce, and of an all-gather? It depends on N."),
        (lambda b, g: 16 * one(g) if is_full(g) else b, lambda b, g: b * (1 + is_full(g)),
         lambda b, g: b + 4 * one(g) * is_full(g), lambda b, g: b + 2 * one(g) * is_full(g) *
         is_again(g), lambda b, g: b * 4 / 3 if is_full(g) and not is_cut(g) else b,
         lambda b, g: (16 + 4 * is_again(g)) * one(g) if is_full(g) else b,
         "With full recomputation, the forward runs twice, and the backward once."),
        (lambda b, g: b + 4 * one(g) * (g.config.recompute == "selective"),
         lambda b, g: b + 2 * one(g) * (g.config.recompute == "selective"), "Selective "
         "recomputation runs the core of attention again. Which of its products leaves the rank?"),
        (lambda b, g: b + 2 * one(g) * (g.way == "sequence, kept"), "That gathers the inputs "
         "twice. In this way the gathered inputs are kept for the backward."),
        (lambda b, g: b / (2 if is_cut(g) else 1), lambda b, g: b * (2 if is_cut(g) else 1),
         lambda b, g: b / (1 if is_cut(g) else 2), "A reduce-scatter or an all-gather sends half "
         "of an all-reduce. How many of them are there for each all-reduce that they replace?"),
        (lambda b, g: b / (g.ranks if is_cut(g) else 1), "Divided by N. How large is the tensor "
         "that the ranks gather or reduce: T tokens, or T/N tokens?"),
        (lambda b, g: b / max(g.ranks - 1, 1) if g.ranks > 1 else buffers(g, 8), "A rank sends "
         "(N - 1)/N of a buffer in each pass of a ring: it keeps one part, and sends the others."),
        (lambda b, g: 8 * one(g), "Neither the second gather nor the recomputation is in it. Which "
         "messages does each way add?"),
        (lambda b, g: b / 2, lambda b, g: 4 * one(g), lambda b, g: b - 4 * one(g), "Half of the "
         "bytes, or the backward is missing. Count the all-reduces of the forward and of the "
         "backward, and how often a ring sends each byte of an all-reduce."),
        (lambda b, g: b * 2, lambda b, g: 16 * one(g), "Twice the bytes. In tensor parallelism, "
         "g sends in the forward alone, and f in the backward alone: which all-reduces are left?"),
        (lambda b, g: b * g.config.inner / g.config.width,
         lambda b, g: b * (1 + g.config.inner / g.config.width) / 2, "Which width does the message "
         "have? The sum is taken after the row-parallel layer."),
        (lambda b, g: b or 1.0, "One rank has nobody to send to. Which factor of a ring is zero "
         "for one rank?"),
    ),
    last="List the messages: in the forward, then in the backward, for attention, then for the "
    "MLP. Beside each write its numbers, and how often a ring sends each number.",
)  # fmt: skip


def kept_terms(config, sequences, tokens, ranks, way, bytes_per_number) -> dict[str, float]:
    """What a rank keeps of a block, in bytes."""
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
    return sum(kept_terms(config, sequences, tokens, ranks, way, bytes_per_number).values())


def times(factor: Callable, *names: str) -> Callable:
    """The formula, with these terms multiplied by factor(g)."""

    def change(b, g):
        given = (g.config, g.sequences, g.tokens, g.ranks, g.way, g.bytes_per_number)
        return b + sum(kept_terms(*given).get(name, 0) for name in names) * (factor(g) - 1)

    return change


def recomputing(new: str, *old: str) -> Callable:
    """The formula, with these kinds of recomputation taken for another."""
    return lambda b, g: (
        g(config=replace(g.config, recompute=new)) if g.config.recompute in old else b
    )


def way(cut: str = "", whole: str = "tensor", kept: str = "") -> Callable:
    """The formula with another way where the tokens are cut, whole, or cut and kept whole."""
    ways = {"tensor": whole, "sequence, kept": kept or cut, "sequence, again": cut}
    return lambda b, g: g(way=ways[g.way] or g.way)


SCORES, INNER, HEADS = "scores", "inside the MLP", "queries, keys, values"
MASKS = "dropout masks"
activation_bytes = OfBlock(
    right=kept_bytes,
    terms=kept_terms,
    which=1,
    say=partial(say, "autograd kept"),
    close=0.015,  # the norms' statistics and the causal mask are below 1.1 % in all cases
    cases=partial(
        blocks,
        {"context": 32, "width": 96, "heads": 8, "norm": "layer", "positions": "learned",
         "mlp": "gelu", "bias": True, "attention": "explicit"},
        {"ranks": 1},
        {"ranks": 2},
        {"ranks": 4, "dropout": 0.1},
        {"ranks": 2, "number": 8, "dropout": 0.1, "hidden": 224},
        {"ranks": 4, "recompute": "selective"},
        {"ranks": 4, "way": "sequence, kept", "dropout": 0.1},
        {"ranks": 4, "way": "sequence, again", "dropout": 0.1, "hidden": 512},
        {"ranks": 2, "way": "sequence, again", "recompute": "selective"},
        {"ranks": 2, "recompute": "full"},
        {"ranks": 4, "way": "sequence, kept", "recompute": "full", "number": 8},
    ),
    slips=(
        (recomputing("none", "selective", "full"), "No recomputation is in it. What does a rank "
         "not keep with selective, and with full recomputation?"),
        (recomputing("none", "selective"), "Selective recomputation runs the core of attention "
         "again. Which large tensor of the core is then not kept?"),
        (recomputing("none", "full"), recomputing("selective", "full"), "Full recomputation runs "
         "the whole block again. From which tensor does it start?"),
        (times(lambda g: g.config.recompute != "selective", HEADS), "The core of attention runs "
         "again in the backward. From which tensors does it start?"),
        (lambda b, g: buffers(g, 1) if is_full(g) else b,
         lambda b, g: buffers(g, 1 / g.ranks) if is_full(g) else b,
         lambda b, g: b * (1 + is_full(g)), "Full recomputation keeps the "
         "input of the block. How much of this input is on one rank, with tensor, and with "
         "sequence parallelism?"),
        (lambda b, g: g(ranks=1, way="tensor"), "That is the whole block. Which tensors does a "
         "rank have only in part?"),
        (way("sequence, again", "sequence, again"), way(whole="sequence, again"), "You divide all "
         "of it by N. With tensor parallelism, which tensors are whole on every rank, between the "
         "layers?"),
        (way("sequence, kept", "sequence, kept"), way(whole="sequence, kept"), "Between the "
         "layers, tensor parallelism keeps every token on every rank: what do norms and dropout "
         "keep?"),
        (way("tensor"), "That is tensor parallelism. What do norms and dropout see of the tokens, "
         "with sequence parallelism?"),
        (way("sequence, again"), "All of it divided by N. The gathered inputs of the "
         "column-parallel layers are kept here: how many tokens do they have?"),
        (way("sequence, kept"), "The gathered inputs are not kept here. How many tokens of a "
         "layer's input does a rank keep, to gather them again?"),
        (way("sequence, kept", "tensor", "sequence, again"), "The two ways of sequence parallelism "
         "are exchanged: which one keeps the gathered inputs?"),
        (times(lambda g: g.ranks, HEADS, INNER, "input of the output layer"),
         times(lambda g: g.ranks, HEADS, INNER, SCORES), "Inside attention and the MLP a "
         "rank has its heads and its F/N columns only."),
        (lambda b, g: b + 2 * buffers(g, 1 / g.bytes_per_number / (g.ranks if is_cut(g) else 1))
         * (not g.config.dropout and not is_full(g)), "Without dropout there are no masks."),
        (times(lambda g: 2 + 1 / g.bytes_per_number, SCORES), times(lambda g: 2.5, SCORES),
         times(lambda g: 5 / g.bytes_per_number, SCORES), times(lambda g: 5, SCORES), "As in the "
         "paper, with dropout on the scores. This block has none: which numbers for each pair of "
         "tokens are left?"),
        (times(lambda g: 2, SCORES), times(lambda g: 4 / g.bytes_per_number, SCORES), "The scores "
         "before and after the softmax. Its backward needs only its output."),
        (times(lambda g: 2, MASKS), times(lambda g: g.bytes_per_number, MASKS), "A mask says for "
         "each number whether it is dropped. How many bytes does the exercise give it?"),
        (times(lambda g: g.config.heads, SCORES), times(lambda g: 1 / g.config.heads, SCORES),
         times(lambda g: 1 / g.sequences, SCORES), "Each head of each sequence has its own "
         "scores, once."),
        (times(lambda g: 4 * g.config.width / g.config.inner, INNER), "How wide is the MLP inside? "
         "It need not be 4 D."),
    ),
    last="Go through the block from its input to its output. For each operation write down which "
    "tensors its backward needs, and how much of each is on one rank.",
)  # fmt: skip
