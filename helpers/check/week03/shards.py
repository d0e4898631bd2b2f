"""Exercises of week 3: a shard of the data on each rank, the same first state, tokens to hide."""

import torch
import torch.distributed as dist
from torch import nn

from helpers.check import hidden
from helpers.check.answers import plain
from helpers.check.exercise import Edit, Number
from helpers.check.ranks import OnRanks
from helpers.check.verdict import NotRight
from helpers.simulate.data_parallel import hiding_tokens

# shard

LENGTH = 3
SHARDS = ((2, 4), (3, 8), (3, 3), (2, 1), (4, 6), (4, 3))  # ranks, rows


def run_shard(worker, solve, rows):
    """Number k of row r is 10 r + k."""
    first = 1000 * hidden.shift(99) + 10 * torch.arange(rows)[:, None]
    batch = first + torch.arange(LENGTH)
    answer = solve(worker, batch.clone())
    tensor = isinstance(answer, torch.Tensor)
    whole = tensor and answer.ndim == 2 and answer.shape[1] == LENGTH
    every = batch.tolist()
    return {
        "what is returned": "a tensor" if tensor else plain(answer),
        "its shape": "(b, T)" if whole else str(tuple(answer.shape)) if tensor else "none",
        "rows": tuple(every.index(row) if row in every else -1 for row in answer.tolist())
        if whole
        else (),
    }


def judge_shard(trace, right, ranks, case):
    held, rows = trace["rows"], case["rows"]
    every = [row for mine in held for row in mine]
    finding = "\n".join(
        [f"{rows} rows", *(f"  rank {r}: {say_rows(mine)}" for r, mine in enumerate(held))]
    )
    if -1 in every:
        raise NotRight(f"{finding} (-1: not in the batch)", "Which line changed the numbers?")
    if lost := sorted(set(range(rows)) - set(every)):
        raise NotRight(finding, f"{say_rows(lost).capitalize()}: on no rank.")
    if len(every) > rows:
        raise NotRight(finding, TWICE)
    if every != list(range(rows)):
        raise NotRight(finding, ORDER)
    if max(map(len, held)) - min(map(len, held)) > 1:
        raise NotRight(finding, UNEVEN)


def say_rows(rows) -> str:
    return f"row{'s' * (len(rows) != 1)} {', '.join(map(str, rows))}" if rows else "no rows"


def one_shard(worker, batch):
    n, rank = worker.world_size, worker.rank
    return batch.tensor_split(n)[rank]


ORDER = (
    "Each row is on one rank, but the ranks' rows, put one after another in rank order, are not in "
    "the batch's order."
)
TWICE = "Some rows would count more than once in the gradient. May a rank have fewer than another?"
UNEVEN = (
    "Each row is on one rank, but the slowest rank has the most rows, and the other ranks wait for "
    "it. By how many rows must two ranks differ?"
)
LEFT_OVER = "Some rows are on no rank. How many are left over when they are split over the ranks?"
MINE = "batch.tensor_split(n)[rank]"
shard = OnRanks(
    name="shard",
    right=one_shard,
    run=run_shard,
    cases=tuple((n, {"rows": rows}) for n, rows in SHARDS),
    free=("rows",),
    rule=judge_shard,
    slips=(
        (Edit(MINE, "batch"), "Every rank holds the whole batch: N ranks do the same work N "
         "times."),
        (Edit("[rank]", "[0]"), "Every rank holds the same rows. On which number must the split "
         "depend?"),
        (Edit(MINE, "batch[rank::n]"), ORDER),
        (Edit("[rank]", "[n - 1 - rank]"), ORDER),
        (Edit(MINE, "batch[len(batch) // n * rank :][: len(batch) // n]"), LEFT_OVER),
        (Edit(MINE, "batch[len(batch) // n * rank :][: len(batch) // n if rank < n - 1 else None]"),
         UNEVEN),
        (Edit(MINE, "batch[-(-len(batch) // n) * rank :][: -(-len(batch) // n)]"), UNEVEN),
        (Edit(MINE, "batch.roll(rank, 0).tensor_split(n)[rank]"), "Some rows are on no rank, and "
         "others on more than one: the ranks did not split one and the same order. Does each rank "
         "draw its own order?"),
        (Edit(MINE, "batch[[r % len(batch) for r in range(rank, -(-len(batch) // n) * n, n)]]"),
         TWICE),
        (Edit(MINE, "batch.tensor_split(n, 1)[rank]"), "A shard is (b, T): whole rows. Which dim "
         "of the batch counts the rows?"),
        (Edit(MINE, MINE + " + 1"), "A shard holds the batch's own numbers. Which line changed "
         "them?"),
        (Edit(MINE, MINE + ".tolist()"), "Return a tensor (b, T) on every rank; it may have no "
         "rows."),
    ),
    failures=(
        (r"IndexError", "Does the split return as many parts as ranks, also for a few rows? Print "
         "the number of parts.", lambda worker, batch: batch.chunk(worker.world_size)[worker.rank]),
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
    solve(worker, model)
    return {
        "the model": {name: plain(tensor) for name, tensor in tensors_of(model).items()},
        "the memory of its tensors": views,
    }


def same_state(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        old = tensor.detach()
        dist.broadcast(old, src=0)


def on_rank_0(worker, model):
    if worker.rank == 0:
        same_state(worker, model)


EVERY = "[*model.parameters(), *model.buffers()]"
CALL = "dist.broadcast(old, src=0)"
ADDED = (
    "Rank 0's own numbers have changed: the ranks' numbers were added. Here one rank sends and the "
    "others receive. Which collective does that?"
)
KEPT = (
    "Every rank has kept its own numbers. Do all ranks name the same source, and do the received "
    "numbers reach the model?"
)
broadcast_state = OnRanks(
    name="broadcast_state",
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
        (Edit(CALL, "dist.all_reduce(old)"), ADDED),
        (Edit(CALL, "dist.all_reduce(old)\n        if old.is_floating_point():\n            "
              "old /= worker.world_size"), ADDED),
        (Edit("tensor.detach()", "tensor.detach().clone()"), KEPT),
        (Edit(CALL, "pass"), KEPT),
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
         lambda worker, model: same_state(worker, model) if worker.rank else None),
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


def drawn_cluster(random):
    speeds = (random.uniform(1e13, 9e14), random.uniform(1e10, 9e11))
    sizes = (random.randint(2, 900), random.choice((2, 4)), random.randint(1, 8))
    return "another cluster", (*speeds, *sizes)


def say_tokens(found, right, flops, bandwidth, ranks, gradient_bytes, micro_batches) -> str:
    return (
        f"{flops:,.4g} FLOP/s, {bandwidth:,.4g} bytes/s, {ranks} ranks, {gradient_bytes} bytes per "
        f"gradient, {micro_batches} micro-batch{'es' * (micro_batches > 1)}\n"
        f"  you said {found:,.6g} tokens; both times are equal at {right:,.6g}"
    )


def around(g) -> float:
    return max(g.ranks - 1, 1) / g.ranks


NO_SYNC = "Inside no_sync() nothing is sent. Which backward can still hide messages?"
tokens_to_hide = Number(
    name="tokens_to_hide",
    right=fewest_tokens,
    unit="tokens",
    draw=drawn_cluster,
    say=say_tokens,
    close=1e-6,
    cases=(  # FLOP/s, bytes/s of bus bandwidth, ranks, bytes per gradient, micro-batches
        ("5 GPUs, bf16 messages", (4e14, 4e11, 5, 2, 1)),
        ("1,024 GPUs, bf16 messages", (4e14, 4e11, 1024, 2, 1)),
        ("a slow network", (4e14, 5e10, 64, 2, 1)),
        ("fp32 messages", (1e14, 2e11, 8, 4, 1)),
        ("4 micro-batches in each step", (4e14, 4e11, 16, 2, 4)),
        ("fp32 messages, 3 micro-batches", (1e14, 2e11, 8, 4, 3)),
        ("one GPU alone", (4e14, 4e11, 1, 2, 1)),
    ),
    slips=(
        (lambda b, g: b / around(g), "How many bytes of each gradient does a ring send? It depends "
         "on n."),
        (lambda b, g: g(ranks=10**18), "How many bytes of each gradient does a ring send? It "
         "depends on n."),
        (lambda b, g: b / around(g) / 2, "An all-reduce is a reduce-scatter and an all-gather. "
         "Where is n?"),
        (lambda b, g: g(ranks=10**18) / 2, "An all-reduce is a reduce-scatter and an all-gather. "
         "Where is n?"),
        (lambda b, g: b * g.ranks / max(g.ranks - 1, 1) * g.ranks / g.ranks, "How many bytes of "
         "each gradient does a ring send? It depends on n."),
        (lambda b, g: g(micro_batches=1), NO_SYNC),
        (lambda b, g: b / g.micro_batches**2, "More micro-batches: does each one compute more "
         "tokens, or fewer?"),
        (lambda b, g: g(gradient_bytes=2), "How many bytes does each gradient have in the "
         "message?"),
        (lambda b, g: g(gradient_bytes=4), "How many bytes does each gradient have in the "
         "message?"),
        (lambda b, g: g(gradient_bytes=1), "How many bytes does each gradient have in the "
         "message?"),
        (lambda b, g: b / 2, "Half of the bytes. An all-reduce sends each byte twice: a "
         "reduce-scatter, then an all-gather."),
        (lambda b, g: b * 2, "That is the forward's time. Which part of the step hides the "
         "messages?"),
        (lambda b, g: b * 2 / 3, "That counts the forward, too. No gradient is ready during the "
         "forward. How many FLOPs per parameter and token does the backward take?"),
        (lambda b, g: b * 8, "bus_bandwidth counts bytes per second, not bits."),
        (lambda b, g: b * g.ranks, "Count the tokens of one GPU, not those of all GPUs."),
        (lambda b, g: b * g.bus_bandwidth**2 / g.flops_per_second**2, "Upside down: does a faster "
         "GPU need fewer tokens?"),
        (lambda b, g: b or 1.0, "One GPU sends no message. Which factor of the all-reduce is zero "
         "for one rank?"),
    ),
    last="Write down two times for N parameters: the backward of the last micro-batch, and the "
    "all-reduce. Set them equal. N cancels.",
)  # fmt: skip
