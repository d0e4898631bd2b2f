"""Exercises of week 3: a shard of the data on each rank, the same first state, tokens to hide."""

import math

import torch
import torch.distributed as dist
from torch import nn

from helpers.check import hidden
from helpers.check.answers import plain, short
from helpers.check.exercise import Edit, among
from helpers.check.number import Number
from helpers.check.ranks import OnRanks, observed
from helpers.simulate.data_parallel import hiding_tokens

# shard

LENGTH = 3
SHARDS = ((2, 4), (3, 8), (3, 3), (2, 1), (4, 6), (4, 3))  # ranks, rows


def batch_of(worker, rows):
    """Number k of row r is 10 r + k."""
    first = 1000 * hidden.shift(99) + 10 * torch.arange(rows)[:, None]
    return (first + torch.arange(LENGTH),)


def form_of(answer, batch):
    whole = isinstance(answer, torch.Tensor) and answer.shape[1:] == batch.shape[1:]
    return {"a tensor (b, T)": whole or short(plain(answer))}


def join_shards(trace, rows):
    """The first number of each row, by rank; which rows are on no rank, and on several."""
    shards = trace["the result"]
    if trace["a tensor (b, T)"] != (True,) * len(shards):
        return {}
    first = 1000 * hidden.shift(99)
    held = [number - first for shard in shards for number in shard[:, 0].tolist()]
    every, sizes = list(range(0, 10 * rows, 10)), [len(shard) for shard in shards]
    return {
        "numbers that are not in the batch": str(sorted({*held} - {*every})),
        "rows on no rank": str([number // 10 for number in sorted({*every} - {*held})]),
        "rows too many": max(0, len(held) - rows),
        "rows in the batch's order": held == every,
        "rows of a rank more than of another, beyond 1": max(0, max(sizes) - min(sizes) - 1),
    }


def one_shard(worker, batch):
    n, rank = worker.world_size, worker.rank
    return batch.tensor_split(n)[rank]


MINE = "batch.tensor_split(n)[rank]"
shard = OnRanks(
    right=one_shard,
    given=batch_of,
    also=form_of,
    together=join_shards,
    cases=tuple((n, {"rows": rows}) for n, rows in SHARDS),
    free=("the result",),
    slips=(
        (Edit(MINE, "batch"), "Every rank holds the whole batch: N ranks do the same work N "
         "times."),
        (Edit("[rank]", "[0]"), "Every rank holds the same rows. On which number must the split "
         "depend?"),
        (Edit(MINE, "batch[len(batch) // n * rank :][: len(batch) // n]"), "Some rows are on no "
         "rank. How many are left over when they are split over the ranks?"),
        (Edit(MINE, "batch.roll(rank, 0).tensor_split(n)[rank]"), "Some rows are on no rank, and "
         "others on more than one: the ranks did not split one and the same order. Does each rank "
         "draw its own order?"),
        (Edit(MINE, "batch.tensor_split(n, 1)[rank]"), "A shard is (b, T): whole rows. Which dim "
         "of the batch counts the rows?"),
    ),
    about={
        "a tensor (b, T)": "Return a tensor (b, T) on every rank; it may have no rows.",
        "numbers that are not in the batch": "A shard holds the batch's own numbers. Which line "
        "changed them?",
        "rows on no rank": "Some rows are on no rank. Which ones, and which rank should have them?",
        "rows too many": "Some rows would count more than once in the gradient. May a rank have "
        "fewer than another?",
        "rows in the batch's order": "Each row is on one rank, but the ranks' rows, put one after "
        "another in rank order, are not in the batch's order.",
        "rows of a rank more than of another, beyond 1": "Each row is on one rank, but the slowest "
        "rank has the most rows, and the other ranks wait for it. By how many rows must two ranks "
        "differ?",
    },
    failures=(
        (r"IndexError", "Does the split return as many parts as ranks, also for a few rows? Print "
         "the number of parts.", Edit(MINE, "batch.chunk(n)[rank]")),
        (r"split_with_sizes|stack expects|shape '", "The number of rows may not be a multiple of "
         "the number of ranks.", None),
    ),
    last="Split the batch along its first dim, in rank order, as evenly as possible.",
)  # fmt: skip


# broadcast_state


class State(nn.Module):
    """Parameters, one of them frozen, and buffers: one of integers, one not in state_dict()."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.frozen = nn.Linear(4, 2, bias=False).requires_grad_(False)
        self.register_buffer("running_mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("table", torch.zeros(2, 3), persistent=False)


def tensors_of(model) -> dict[str, torch.Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


def run_state(worker, solve):
    """Every number is on one rank only. The large integer does not fit into a float32."""
    model = State()
    before = tensors_of(model)
    for place, (name, tensor) in enumerate(before.items()):
        first = 1000.0 * hidden.shift(99) + 100 * (worker.rank + 1) ** 2 + 10 * place
        row = first + torch.arange(tensor.numel(), dtype=torch.float64)
        row += (2**24 + 1) * (name == "steps")
        tensor.detach().copy_(row.view(tensor.shape))
    views = {name: tensor.detach().view(tensor.shape) for name, tensor in before.items()}
    _, seen = observed(solve, worker, model)
    return {
        "unwaited": seen["unwaited"],
        "the model": {name: plain(tensor) for name, tensor in tensors_of(model).items()},
        "the memory of its tensors": views,
    }


def same_state(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        old = tensor.detach()
        dist.broadcast(old, src=0)


EVERY = "[*model.parameters(), *model.buffers()]"
CALL = "dist.broadcast(old, src=0)"
broadcast_state = OnRanks(
    right=same_state,
    run=run_state,
    cases=((2, {}), (3, {})),
    slips=(
        (Edit(EVERY, "model.parameters()"), "The parameters are rank 0's. Which other tensors does "
         "the forward use, although no optimizer trains them?"),
        (Edit(EVERY, "model.buffers()"), "The buffers are rank 0's, the parameters are not."),
        (Edit(EVERY, "model.state_dict().values()"), "One buffer is not in state_dict() "
         "(persistent=False), but the forward uses it. Which method lists all buffers of a model?"),
        (Edit(EVERY, "[p for p in [*model.parameters(), *model.buffers()] if p.requires_grad or "
              "not isinstance(p, nn.Parameter)]"), "Some parameters do not train, but the forward "
         "uses them."),
        (Edit(EVERY, "[p for p in model.parameters() if p.requires_grad]"), "Some parameters do "
         "not train, and no optimizer trains buffers, but the forward uses them."),
        (Edit("src=0", "src=worker.world_size - 1"), "Every rank has the last rank's numbers. "
         "Which rank is the source?"),
        (Edit(CALL, "dist.all_reduce(old)"),
         Edit(CALL, "dist.all_reduce(old)\n        if old.is_floating_point():\n            "
              "old /= worker.world_size"),
         "Rank 0's own numbers have changed: the ranks' numbers were added. Here one rank sends "
         "and the others receive. Which collective does that?"),
        (Edit(CALL, "pass"), "Every rank has kept its own numbers. Do all ranks name the same "
         "source, and do the received numbers reach the model?"),
        (Edit("tensor.detach()", "tensor.detach().clone()", CALL, CALL + "\n        "
              "tensor.data = old"), "The right numbers, in new tensors. An optimizer that was "
         "built before still holds the old tensors. Which call writes into a tensor that exists "
         "already?"),
        (Edit("tensor.detach()", "tensor.detach().float()", CALL, CALL + "\n        "
              "tensor.detach().copy_(old)"), "An integer was sent as a float, which cannot hold "
         "it. Which call keeps the dtype?"),
    ),
    failures=(
        (r"was waiting in broadcast", "In a broadcast *every* rank makes the call, and all name "
         "the same source: one sends, the others receive.",
         Edit("for tensor in", "for tensor in () if worker.rank == 0 else")),
        (r"leaf Variable that requires grad", "Autograd records changes of parameters. To write "
         "into one without a record, use the same memory without its history.", None),
    ),
    last="Afterwards every rank has rank 0's numbers, in the tensors that it had before.",
)  # fmt: skip


# tokens_to_hide


def fewest_tokens(flops_per_second, bus_bandwidth, ranks, gradient_bytes, micro_batches) -> float:
    """Only the last micro-batch's backward hides messages, so the others add tokens for nothing."""
    return micro_batches * hiding_tokens(
        flops_per_second=flops_per_second,
        bus_bandwidth=bus_bandwidth,
        ranks=ranks,
        gradient_bytes=gradient_bytes,
    )


def around(g) -> float:
    return max(g.ranks - 1, 1) / g.ranks


tokens_to_hide = Number(
    right=fewest_tokens,
    unit="tokens",
    draw=among(flops_per_second=(1e13, 9e14), bus_bandwidth=(1e10, 9e11), ranks=(2, 900),
               gradient_bytes=[2, 4], micro_batches=(1, 8)),
    close=1e-6,
    cases=(  # FLOP/s, bytes/s of bus bandwidth, ranks, bytes per gradient, micro-batches
        (4e14, 4e11, 5, 2, 1),
        (4e14, 4e11, 1024, 2, 1),
        (4e14, 5e10, 64, 2, 1),
        (1e14, 2e11, 8, 4, 1),
        (4e14, 4e11, 16, 2, 4),
        (1e14, 2e11, 8, 4, 3),
        (4e14, 4e11, 1, 2, 1),
    ),
    slips=(
        (lambda b, g: b / around(g), lambda b, g: g(ranks=10**18),
         lambda b, g: b * g.ranks / max(g.ranks - 1, 1), "How many bytes of each gradient does a "
         "ring send? It depends on n."),
        (lambda b, g: b / around(g) / 2, lambda b, g: g(ranks=10**18) / 2, "An all-reduce is a "
         "reduce-scatter and an all-gather. Where is n?"),
        (lambda b, g: g(gradient_bytes=2, micro_batches=1), "That is the formula for bf16 and one "
         "micro-batch. Which arguments do you not use?"),
        (lambda b, g: g(micro_batches=1), "Inside no_sync() nothing is sent. Which backward can "
         "still hide messages?"),
        (lambda b, g: b / g.micro_batches**2, "More micro-batches: does each one compute more "
         "tokens, or fewer?"),
        (lambda b, g: b / 2, "Half of the bytes. An all-reduce sends each byte twice: a "
         "reduce-scatter, then an all-gather."),
        (lambda b, g: b * 2, "That is the forward's time. Which part of the step hides the "
         "messages?"),
        (lambda b, g: b * 2 / 3, "That counts the forward, too. No gradient is ready during the "
         "forward. How many FLOPs per parameter and token does the backward take?"),
        (lambda b, g: b * 8, "bus_bandwidth counts bytes per second, not bits."),
        (lambda b, g: b * g.ranks, "Is that the tokens of all GPUs? Count those of one. Or did you "
         "forget that a message has 1/n of the gradients?"),
        (lambda b, g: g(micro_batches=max(g.micro_batches - 1, 1)), "Only the *last* backward "
         "hides messages. What share of all tokens is it?"),
        (lambda b, g: g(ranks=10**18) / around(g) * (g.ranks > 1),
         lambda b, g: g(ranks=10**18) * math.log2(g.ranks), "How many steps does a ring take, and "
         "which part of the gradients does a rank send in one step?"),
        (lambda b, g: b * g.bus_bandwidth**2 / g.flops_per_second**2, "Upside down: does a faster "
         "GPU need fewer tokens?"),
        (lambda b, g: b or 1.0, "One GPU sends no message. Which factor of the all-reduce is zero "
         "for one rank?"),
    ),
    last="Write down two times for N parameters: the backward of the last micro-batch, and the "
    "all-reduce. Set them equal. N cancels.",
)  # fmt: skip
