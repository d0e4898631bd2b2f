"""Exercises of week 11 on slow links: quantised blocks, hpZ's shards, the break-even, a round.

P  parameters        K  nodes        L  ranks of a node        B  numbers of a block
"""

import torch
import torch.distributed as dist

from helpers.check.exercise import Edit, Exercise, call
from helpers.check.hidden import normal
from helpers.check.number import Number
from helpers.check.ranks import OnRanks
from helpers.check.verdict import NotRight

# quantise_blocks


def rows():
    outlier, zeros, negative = normal(2, 12), normal(3, 9), -normal(4, 8).abs()
    outlier[5] *= 100
    zeros[3:6] = 0
    return (
        ("12 numbers in blocks of 4, int8", (normal(0, 12), 4, 8)),
        ("10 numbers in blocks of 4, int8", (normal(1, 10), 4, 8)),
        ("12 numbers with an outlier, in blocks of 4, int4", (outlier, 4, 4)),
        ("8 negative numbers in blocks of 4, int8", (negative, 4, 8)),
        ("9 numbers in blocks of 3, int8; one block has zeros alone", (zeros, 3, 8)),
        ("5 numbers in blocks of 8, int4", (normal(5, 5), 8, 4)),
    )


PARTS = ("codes", "scales", "bound")


def play_blocks(solve, row, size, bits) -> dict:
    """The scales first: the codes are made with them."""
    found = call(solve, row, size, bits, names=PARTS, keeps=True)
    return {"returned": found["returned"], "scales": found.get("scales")} | found


def in_blocks(row, size, bits):
    most = 2 ** (bits - 1) - 1
    codes, bound, scales = torch.empty_like(row), torch.empty_like(row), []
    for start in range(0, len(row), size):
        block = row[start : start + size]
        scale = block.abs().max() / most
        step = scale if scale > 0 else 1.0
        codes[start : start + size] = (block / step).round()
        bound[start : start + size] = scale / 2
        scales.append(scale)
    return codes, torch.stack(scales), bound


LARGEST = "block.abs().max() / most"
ROUNDED = "(block / step).round()"
BOUND = "= scale / 2"
quantise_blocks = Exercise(
    right=in_blocks,
    play=play_blocks,
    names=PARTS,
    cases=rows,
    close=1e-12,
    slips=(
        (Edit(LARGEST, "block.max() / most"), "The largest number is not always the one of the "
         "largest magnitude. What if a block has negative numbers alone?"),
        (Edit(LARGEST, "row.abs().max() / most"), "All blocks have one scale, so an outlier costs "
         "precision everywhere. Of which numbers is the largest magnitude?"),
        (Edit("2 ** (bits - 1) - 1", "2 ** (bits - 1)"), "The largest magnitude gets code 128 or "
         "8, and a signed number of 8 or 4 bits ends at 127 or 7."),
        (Edit("2 ** (bits - 1) - 1", "2**bits - 1"), "That is the largest code without a sign. "
         "One bit is the sign."),
        (Edit("2 ** (bits - 1) - 1", "127"), "For int8 alone. Which is the largest code in int4?"),
        (Edit("scale if scale > 0 else 1.0", "scale"), "A block of zeros has the scale 0, and 0 / "
         "0 is no number. Which codes does it have?"),
        (Edit(LARGEST, LARGEST + " if block.any() else row.new_tensor(1.0)"), "A block of zeros "
         "has the scale 0: nothing in it is off."),
        (Edit(ROUNDED, "(block / step).trunc()"), "The codes are cut off, not rounded: the error "
         "is up to a whole step."),
        (Edit(ROUNDED, "(block / step).floor()"), "The codes are rounded down: the error is up to "
         "a whole step. Round to the nearest."),
        (Edit(ROUNDED, "block / step"), "Codes are whole numbers."),
        (Edit(ROUNDED, "(block * step).round()"), "How many steps make a number? Divide by the "
         "scale to quantise, multiply to get the number back."),
        (Edit(ROUNDED, "(block / step).round() * scale"), "These are the numbers after decoding. "
         "The codes are what travels."),
        (Edit(BOUND, "= scale"), "Rounded to the nearest step, a number is never off by a whole "
         "step."),
        (Edit(BOUND, "= (block - (block / step).round() * scale).abs()"), "That is the error of "
         "each number. The bound follows from the scale alone."),
        (Edit("torch.stack(scales), bound",
              "torch.stack(scales), torch.full_like(row, max(scales) / 2)"),
         Edit("torch.stack(scales), bound",
              "torch.stack(scales), torch.full_like(row, scales[0] / 2)"),
         "Each number has the bound of its own block."),
        (Edit("torch.stack(scales), bound", "torch.stack(scales), torch.stack(scales) / 2"),
         "Return a bound for each number, not for each block."),
        (Edit("len(row), size)", "len(row) - len(row) % size, size)", "empty_like(row), torch",
              "zeros_like(row), torch", "empty_like(row), []", "zeros_like(row), []",
              "torch.stack(scales)", "torch.tensor([*scales], dtype=row.dtype)"), "The last block "
         "may be shorter. It has a scale, too."),
    ),
    last="For each block: the scale is the largest magnitude / the largest code. A code is the "
    "number / the scale, rounded. The error is at most half a scale.",
)  # fmt: skip


# second_shard


def drawn_ranks(random):
    nodes, local = random.randint(2, 9), random.randint(2, 9)
    size = nodes * local * random.randint(2, 99)
    return "another layout", (size, nodes, local, random.randrange(nodes * local))


def two_ranges(numbers, nodes, local, rank):
    shard, second = numbers // (nodes * local), numbers // local
    place = rank % local
    return (rank * shard, (rank + 1) * shard), (place * second, (place + 1) * second)


SECOND = "(place * second, (place + 1) * second)"
second_shard = Number(
    right=two_ranges,
    names=("the (start, stop) of the shard", "the (start, stop) of the second shard"),
    draw=drawn_ranks,
    cases=(  # numbers, K, L, rank
        ("24 numbers, 2 nodes of 3 ranks, rank 4", (24, 2, 3, 4)),
        ("24 numbers, 2 nodes of 3 ranks, rank 2", (24, 2, 3, 2)),
        ("96 numbers, 4 nodes of 2 ranks, rank 5", (96, 4, 2, 5)),
        ("384 numbers, 3 nodes of 8 ranks, rank 19", (384, 3, 8, 19)),
        ("40 numbers, 1 node of 4 ranks, rank 2", (40, 1, 4, 2)),
        ("40 numbers, 5 nodes of 1 rank, rank 3", (40, 5, 1, 3)),
    ),
    slips=(
        (Edit("place = rank % local", "place = rank // local"), "That is the number of the node. "
         "Which number tells the ranks of one node apart?"),
        (Edit("place = rank % local", "place = rank % nodes"), Edit("place = rank % local",
              "place = rank // nodes"), "Ranks 0 … L-1 are on node 0, and the next L on node 1. "
         "What is the place of a rank inside its node?"),
        (Edit("place = rank % local", "place = rank"), "The ranks of one node together keep all "
         "numbers once. So the second shard depends on the place inside the node."),
        (Edit("second = numbers // (nodes * local), numbers // local",
              "second = numbers // (nodes * local), numbers // nodes"), "The gather inside the "
         "node must find every number there. Among how many ranks are they divided?"),
        (Edit("second = numbers // (nodes * local), numbers // local",
              "second = numbers // (nodes * local), numbers // (nodes * local)"), "That is a "
         "second copy of a shard of 1/(K L). Then a node does not have all numbers."),
        (Edit("shard, second = numbers // (nodes * local)", "shard, second = numbers // local"),
         "hpZ leaves the first shard as it is: stage 3 divides the numbers among all ranks."),
        (Edit("(rank * shard, (rank + 1) * shard)", "(rank * shard, shard)", SECOND,
              "(place * second, second)"), "Return start and stop, not start and length."),
        (Edit("(rank + 1) * shard", "(rank + 1) * shard - 1", "(place + 1) * second",
              "(place + 1) * second - 1"), "As in a slice of Python, stop is the place behind the "
         "last number."),
        (Edit(SECOND, "(0, numbers)"), "Then each rank keeps the whole model. It is enough if the "
         "ranks of a node have it together."),
        (Edit("return (rank * shard, (rank + 1) * shard)",
              "return (place * shard, (place + 1) * shard)"), "The first shard depends on the rank "
         "among all ranks: every number has one owner."),
    ),
    last="Stage 3 divides the numbers among all K L ranks, in their order. The second shards "
    "divide them among the L ranks of each node, in the order of their places.",
)  # fmt: skip


# break_even_bandwidth


def drawn_link(random):
    nodes, local, block = random.randint(2, 99), random.randint(2, 16), random.choice((64, 512))
    speeds = (random.randint(1, 99) * 1e9, random.randint(1, 99) * 1e9)
    params = block * nodes * local * random.randint(9, 99)
    return "another cluster", (params, nodes, local, block, *speeds)


def slow_enough(params, nodes, local, block, encode, decode):
    scales = 4 * params / block
    exact = 3 * 2 * params
    sent = params + scales + params / 2 + scales
    fewer = (exact - sent) * (nodes - 1) / nodes / local
    reduced = params + params / local
    encoded = params / nodes / local + reduced
    decoded = params + reduced
    return fewer / (encoded / encode + decoded / decode)


SENT, ENDS = "sent = params + scales + params / 2 + scales", "encoded / encode + decoded / decode"
break_even_bandwidth = Number(
    right=slow_enough,
    unit="bytes a second",
    close=1e-9,
    draw=drawn_link,
    cases=(  # P, K, L, B, encode, decode
        ("12,288 parameters, 2 nodes of 3 ranks", (12_288, 2, 3, 64, 1e6, 2e6)),
        ("18 billion, 24 nodes of 16 GPUs, 100 billion numbers a second",
         (17_999_953_920, 24, 16, 256, 1e11, 1.5e11)),
        ("1.5 billion, 4 nodes of 8 GPUs, blocks of 32", (1_500_000_256, 4, 8, 32, 2e10, 5e10)),
        ("nodes of one GPU", (8_192_000, 5, 1, 128, 3e8, 7e8)),
        ("one node", (8_192_000, 1, 4, 128, 3e8, 7e8)),
    ),
    slips=(
        (Edit("* (nodes - 1) / nodes / local", "/ local"), "A node has 1/K of the numbers itself: "
         "they do not cross its link."),
        (Edit("(nodes - 1) / nodes / local", "(nodes - 1) / nodes"), "These are the bytes of all "
         "ranks of a node. Each of its L ranks sends a part of them."),
        (Edit("* (nodes - 1) / nodes / local", "/ nodes / local"), "To how many other nodes does "
         "each number go?"),
        (Edit(SENT, "sent = params + params / 2"), "The scales travel, too: one of 4 bytes for "
         "each block."),
        (Edit(SENT, "sent = params + params / 2 + scales"), "The weights and the gradients have "
         "scales each, of 4 bytes."),
        (Edit(SENT, "sent = 2 * (params + scales) + params / 2 + scales"), "With hpZ, the backward "
         "gathers inside the node. How often do the weights cross?"),
        (Edit(SENT, "sent = params + scales + params + scales"), "The gradients travel in int4, "
         "two numbers in a byte."),
        (Edit(SENT, "sent = params / 2 + scales + params / 2 + scales"), "The weights travel in "
         "int8, a byte each."),
        (Edit("3 * 2 * params", "3 * params"), "Numbers that are not quantised have 2 bytes."),
        (Edit("3 * 2 * params", "2 * 2 * params"), "Stage 3 gathers twice, and sums once."),
        (Edit("exact - sent", "exact"), "ZeRO++ still sends something. Only the difference is "
         "saved."),
        (Edit("exact - sent", "sent"), "That is what ZeRO++ sends. What does it save?"),
        (Edit("reduced = params + params / local", "reduced = params"),
         Edit("reduced = params + params / local", "reduced = 2 * params"), "Gradients are "
         "quantised twice: P numbers inside the node, and the node's P/L sums between the nodes."),
        (Edit("encoded = params / nodes / local + reduced", "encoded = params + reduced"),
         "Before a gather, a rank quantises its own shard alone."),
        (Edit("encoded = params / nodes / local + reduced", "encoded = reduced"), "A rank also "
         "quantises its shard of the weights."),
        (Edit("decoded = params + reduced", "decoded = reduced"), "After the gather, a rank "
         "decodes all P weights."),
        (Edit("decoded = params + reduced", "decoded = params / nodes / local + reduced"),
         "A rank quantises a shard, but it decodes all weights: it uses all of them."),
        (Edit(ENDS, "encoded / encode"), "The numbers must be decoded, too."),
        (Edit(ENDS, "(encoded + decoded) / encode"), Edit(ENDS, "(encoded + decoded) / decode"),
         Edit(ENDS, "encoded / decode + decoded / encode"),
         "Encoding and decoding have speeds of their own."),
        (Edit("return fewer / (" + ENDS + ")", "return (" + ENDS + ") / fewer"), "That is seconds "
         "for a byte. Which bandwidth is it?"),
    ),
    last="Bytes that a rank saves, divided by the seconds of its quantiser. At this bandwidth both "
    "ways take as long.",
)  # fmt: skip


# outer_round

SIZES = ((2, 3), (3, 4), (1, 2), (4, 5))  # ranks, numbers
LR, BETA = 0.7, 0.9
TRAVELS = "Anchor and momentum are the same on every rank. Which one tensor has to travel?"


def begun(worker, size, lr, beta):
    anchor, momentum = normal(1, size), normal(2, size)
    return anchor, anchor - 0.1 * normal(10 + worker.rank, size), momentum, lr, beta


def judge_calls(trace, right, ranks, case):
    for rank, calls in enumerate(trace["messages"]):
        if len(calls) > 1:
            raise NotRight(f"right, but rank {rank} called {len(calls)} collectives", TRAVELS)


def averaged(worker, anchor, own, momentum, lr, beta):
    gradient = anchor - own
    dist.all_reduce(gradient)
    gradient /= worker.world_size
    momentum = beta * momentum + gradient
    return anchor - lr * (gradient + beta * momentum), momentum


STEP = "anchor - lr * (gradient + beta * momentum), momentum"
MOMENTUM = "momentum = beta * momentum + gradient"
outer_round = OnRanks(
    right=averaged,
    given=begun,
    names=("the anchor", "the momentum"),
    close=1e-12,
    free=("messages",),
    rule=judge_calls,
    cases=tuple((n, {"size": size, "lr": LR, "beta": BETA}) for n, size in SIZES)
    + ((2, {"size": 3, "lr": 1.0, "beta": 0.0}),),
    slips=(
        (Edit("    gradient /= worker.world_size\n", ""), "That is the sum of the outer gradients. "
         "DiLoCo takes their mean."),
        (Edit("    dist.all_reduce(gradient)\n    gradient /= worker.world_size\n", ""),
         "Each rank goes on from its own parameters alone. Which message brings the others?"),
        (Edit("anchor - own", "own - anchor"), "The outer gradient points away from what the ranks "
         "found: an optimizer subtracts it."),
        (Edit(STEP, "anchor - lr * momentum, momentum"),
         Edit(MOMENTUM, "old, momentum = momentum, beta * momentum + gradient",
              "beta * momentum), momentum", "beta * old), momentum"), "That is plain momentum. "
         "Nesterov looks ahead: which step does it take with the new momentum?"),
        (Edit(STEP, "anchor - lr * gradient, momentum"), "The step does not use the momentum."),
        (Edit(STEP, "anchor - lr * (momentum + beta * momentum), momentum"), "Nesterov's step is "
         "this gradient and beta times the momentum: the momentum alone counts twice here."),
        (Edit(STEP, "anchor - lr * (gradient + momentum), momentum"), "Nesterov multiplies the "
         "momentum by beta in the step, too."),
        (Edit(STEP, "anchor - (gradient + beta * momentum), momentum"), "Where is the outer "
         "learning rate?"),
        (Edit(STEP, "own - lr * (gradient + beta * momentum), momentum"), "The step begins at the "
         "anchor, where all ranks began the round."),
        (Edit(MOMENTUM, "momentum = beta * momentum + (1 - beta) * gradient"), "That is an "
         "average, as in Adam. SGD's momentum adds the whole gradient."),
        (Edit(MOMENTUM, "momentum = momentum + gradient"), "The old momentum fades by beta in each "
         "round."),
        (Edit(MOMENTUM, "momentum = beta * momentum + lr * gradient"), "The learning rate "
         "multiplies the step, not the momentum."),
        (Edit("return " + STEP, "return momentum, anchor - lr * (gradient + beta * momentum)"),
         "Return the anchor first, then the momentum."),
        (Edit("    gradient /= worker.world_size\n", "    gradient /= worker.world_size\n    "
              "dist.all_reduce(momentum.clone())\n"), TRAVELS),
    ),
    last="The outer gradient is the anchor minus this rank's parameters; take its mean over the "
    "ranks. Then one step of SGD with Nesterov's momentum, from the anchor.",
)  # fmt: skip
