"""Exercises of week 12 on long sequences: merged blocks, zigzag's mask, the gradients of keys.

S  blocks        T  queries        w  width of the values        N  ranks
t  tokens of a rank's part         d  width of keys
"""

import torch
import torch.distributed as dist

from helpers.check.exercise import CHANGED, Edit, Exercise
from helpers.check.hidden import normal
from helpers.check.traffic import ByMessages, bytes_sent
from helpers.check.verdict import NotRight

# merge_blocks


def read_blocks():
    """(words, (y, L)): what queries read in each block; 0 and -inf where they see no key."""
    for seed, (words, blocks, queries) in enumerate(
        (("2 blocks", 2, 3), ("5 blocks", 5, 4), ("a single block", 1, 3))
    ):
        yield words, (normal(seed, blocks, queries, 2), normal(10 + seed, blocks, queries))
    large = normal(23, 3, 4).sign() * 3 + 900 + normal(24, 3, 4)
    yield "3 blocks with large scores", (normal(3, 3, 4, 2), large)
    y, total = normal(4, 4, 5, 3), normal(14, 4, 5)
    for block, blind in ((0, slice(0, 3)), (1, slice(0, 2)), (3, slice(4, 5))):
        y[block, blind], total[block, blind] = 0.0, -torch.inf
    yield "4 blocks; some queries see no key of some blocks", (y, total)


def merged(y, L):
    total = L.logsumexp(0)
    weights = (L - total).exp()
    return (weights[..., None] * y).sum(0), total


def two_by_two(y, L):
    result, total = y[0], L[0]
    for more, other in zip(y[1:], L[1:], strict=True):
        both = torch.logaddexp(total, other)
        first, second = (total - both).exp(), (other - both).exp()
        result, total = first[..., None] * result + second[..., None] * more, both
    return result, total


SUM, WEIGHTS, TOTAL = "(weights[..., None] * y).sum(0)", "(L - total).exp()", "L.logsumexp(0)"
SCALE = (
    "Each y is already divided by the sum of its own block's exponentials. By what do you multiply "
    "it, before results of different blocks add up?"
)
merge_blocks = Exercise(
    right=merged,
    names=("y (T, w)", "L (T,)"),
    cases=lambda: list(read_blocks()),
    close=1e-12,
    slips=(
        (Edit(SUM, "y.sum(0)"), Edit(SUM, "y.mean(0)"), SCALE),
        (Edit(WEIGHTS, "torch.ones_like(L) / L.isfinite().sum(0)"), "The blocks do not count "
         "alike: a block has the weight of its sum of exponentials, exp(L), among all sums."),
        (Edit(WEIGHTS, "L / L.sum(0)"), "L is a logarithm. Which numbers of the blocks add up?"),
        (Edit(WEIGHTS, "(L - L.amax(0)).exp()"), "To subtract the largest L avoids an overflow, "
         "but these weights do not sum to 1."),
        (Edit(WEIGHTS, "(total - L).exp()"), "A block with a large L has most of the sum. Your "
         "weight is small there."),
        (Edit(WEIGHTS, "L.exp()"), "The merged result is divided by the sum over all blocks, too: "
         "subtract the merged L before exp."),
        (Edit(WEIGHTS, "L.softmax(-1)"), "Each query has weights of its own. They sum to 1 over "
         "the blocks, not over the queries."),
        (Edit(TOTAL, "L.exp().sum(0).log()"), "exp overflows with large scores. Subtract the "
         "largest L first, or let logsumexp do so."),
        (Edit("sum(0), total", "sum(0), L.sum(0)"), "The sums of exponentials add up, not their "
         "logarithms."),
        (Edit("sum(0), total", "sum(0), L.amax(0)"), "The largest L is not the merged one: the "
         "other blocks add to the sum."),
        (Edit("sum(0), total", "sum(0), total.exp()"), "Return the logarithm of the sum, so that "
         "a later block can be merged, too."),
        (two_by_two, "The first blocks may show a query nothing: -inf minus -inf is no number. "
         "Merge all at once, or keep the merged L finite in the difference."),
    ),
    last="A block's weight is exp(its L - merged L). The merged L is the log-sum-exp of all L.",
)  # fmt: skip


# zigzag_seen

TEXTS = ((32, 4, 2, 0), (32, 4, 0, 2), (32, 4, 1, 1), (24, 3, 0, 2), (24, 3, 2, 2), (8, 4, 3, 0),
         (6, 1, 0, 0))  # fmt: skip


def drawn_text(random):
    ranks = random.randint(2, 6)
    tokens = 2 * ranks * random.randint(1, 5)
    return "another text", (tokens, ranks, *(random.randrange(ranks) for _ in range(2)))


def say_seen(facet, found, right, *text) -> str:
    if getattr(found, "shape", None) != right.shape:
        return ""
    return f"{int((found != right).sum())} of {right.numel()} entries are wrong"


def seen_by(tokens, ranks, rank, source):
    cut = torch.arange(tokens).tensor_split(2 * ranks)
    queries, keys = (torch.cat([cut[one], cut[-1 - one]]) for one in (rank, source))
    return queries[:, None] >= keys


CUT, TAKEN, SEEN = "tensor_split(2 * ranks)", "torch.cat([cut[one], cut[-1 - one]])", (
    "queries[:, None] >= keys")  # fmt: skip
COUNT = (
    "You compare places inside the two blocks. But the block of another rank lies behind or ahead: "
    "which places do its tokens have in the text?"
)
zigzag_seen = Exercise(
    right=seen_by,
    cases=[
        (f"{tokens} tokens, {ranks} ranks, queries of rank {rank}, keys of rank {source}",
         (tokens, ranks, rank, source))
        for tokens, ranks, rank, source in TEXTS
    ],
    draw=drawn_text,
    say=say_seen,
    slips=(
        (Edit(SEEN, "torch.arange(len(queries))[:, None] >= torch.arange(len(keys))"), COUNT),
        (Edit(CUT, "tensor_split(ranks)", TAKEN, "cut[one]"), "That is the mask of neighbouring "
         "tokens: all, nothing, or a triangle. In zigzag, a rank has an early piece and a late "
         "one: it sees some keys of every rank."),
        (Edit(CUT, "tensor_split(2 * ranks)", TAKEN, "torch.arange(tokens)[one::ranks]"), "These "
         "are stripes: every N-th token. In zigzag, a rank has two pieces of neighbouring tokens."),
        (Edit("cut[-1 - one]", "cut[one + ranks]"), "Both pieces are early for rank 0, and late "
         "for the last rank. Which late piece balances the earliest one?"),
        (Edit(TAKEN, "torch.cat([cut[-1 - one], cut[one]])"), "Tokens stay in the order of the "
         "text: the early piece comes first."),
        (Edit(SEEN, "queries[:, None] > keys"), "A token sees itself."),
        (Edit(SEEN, "queries[:, None] <= keys"), "That is the other way round: a query sees keys "
         "at its own place and before."),
        (Edit(SEEN, "keys[:, None] <= queries"), "Each row is a query, and each column a key."),
        (Edit(SEEN, "queries[:, None] < keys"), "True where a query may see a key, not where the "
         "mask hides it."),
    ),
    last="Cut the places 0 … T-1 into 2 N pieces. Rank r has the pieces r and 2 N - 1 - r. A query "
    "sees the keys at its own place and before.",
)  # fmt: skip


# key_gradients


def shares_of(worker, tokens):
    """What a rank adds in each step: (N, t, d). Each rank has a generator of its own."""
    return (normal(100 * tokens + worker.rank, worker.world_size, tokens, 2),)


OWN = (
    "A rank has its own share already. At which rank does the gradient of its keys begin to travel?"
)
ONCE = "A share is needed at one rank alone; and shares for the same keys add up on the way."
MANY = "Each message has a latency. How many messages does a step need, however many tokens it has?"


def few_messages(trace, right, ranks, case):
    part = 8 * 2 * case["tokens"]
    for rank, calls in enumerate(trace["calls"]):
        sends = sum(call.name == "send" for call in calls)
        if (sent := bytes_sent(calls)) > (ranks - 1) * part:
            words = f"the gradients are right, but rank {rank} sent {sent} bytes; {ranks - 1} parts"
            hint = OWN if sent == ranks * part else ONCE
            raise NotRight(f"{words} of {part} bytes are enough", hint)
        if sends >= ranks:
            words = f"the gradients are right, but rank {rank} sent {sends} messages"
            raise NotRight(f"{words}; {ranks - 1} are enough", MANY)


def around(worker, shares):
    n, rank = worker.world_size, worker.rank
    row = torch.zeros_like(shares[0])
    for step in range(1, n):
        row = row + shares[step]
        came = torch.empty_like(row)
        works = [dist.isend(row, (rank + 1) % n), dist.irecv(came, (rank - 1) % n)]
        for work in works:
            work.wait()
        row = came
    return shares[0] + row


STEPS, ADD, HOME = "range(1, n)", "row + shares[step]", "return shares[0] + row"
key_gradients = ByMessages(
    right=around,
    given=shares_of,
    cases=tuple((ranks, {"tokens": tokens}) for ranks, tokens in ((3, 2), (2, 3), (4, 5), (1, 4))),
    draw=lambda random: (5, {"tokens": random.randint(1, 9)}),
    close=1e-12,
    free=("calls",),
    rule=few_messages,
    slips=(
        (Edit(STEPS, "range(1, n - 1)", HOME, "return row + shares[-1]"), "That is the gradient of "
         "another rank's keys. In the last step, a rank has the keys of its right neighbour: where "
         "must their gradient go?"),
        (Edit(STEPS, "range(1, n - 1)", HOME, "return shares[0] + row + shares[-1]"), "Your own "
         "share is added to the gradient of another rank's keys: one message is missing."),
        (Edit("(rank + 1) % n", "(rank - 1) % n", "(rank - 1) % n)]", "(rank + 1) % n)]"), "Keys "
         "travel to the right. Their gradient follows them: your gradients travel to the left."),
        (Edit(HOME, "return row"), "The rank's own queries read its own keys, too, in step 0."),
        (Edit(ADD, "shares[step].clone()"), "What came from the left is lost: each rank adds its "
         "share to it, and passes on the sum."),
        (Edit(ADD, "row + shares[step - 1]"), "That is a step too early: the gradient that leaves "
         "at the end of step i is of the keys that are here in step i."),
        (Edit(ADD, "row + shares[-step]"), "In step i a rank has the keys of rank r - i, not of "
         "rank r + i."),
        (Edit(ADD, "row + shares[rank]"), Edit(ADD, "row + shares[(rank - step) % n]"), "shares "
         "goes by steps, not by ranks: shares[i] is for the keys that are here in step i."),
        (Edit(HOME, "return shares.sum(0)"), "Each row of `shares` is for the keys of another "
         "rank: the sum over the rows mixes them."),
        (Edit(HOME, "return shares[0]"), "Other ranks' queries have read these keys, too: which "
         "shares are missing?"),
        (Edit(STEPS, "range(n)", HOME, "return row"), OWN),
        (Edit("works = [", "works = [work for row, came in zip(row, came) for work in (", "% n)]",
              "% n))]"), MANY),
        (Edit(HOME, "return shares[0].add_(row)"),
         Edit("row = row + shares[step]", "row = shares[step].add_(row)"), CHANGED),
    ),
    last="In step i, from 1 to N - 1: add shares[i] to what came from the left, and send the sum "
    "to the right. After step N - 1 the rank's own gradient comes home: add shares[0].",
)  # fmt: skip
