"""Exercises of week 4: two linear layers and a loss, cut over the ranks.

B  sequences        T  tokens        D  width        F  inner width, cut over N ranks
V  vocabulary       v  this rank's part of it
"""

from functools import partial

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.answers import plain, short
from helpers.check.exercise import Edit
from helpers.check.hidden import normal
from helpers.check.ranks import OnRanks, everywhere, observed, sent
from helpers.check.verdict import NotRight
from helpers.data.batch import IGNORED

B, T, F = 2, 3, 12  # N divides F; where D = F, a transposed weight has the right shape
LAYERS = ((2, {"width": 5}), (3, {"width": 5}), (4, {"width": 12}))


def summed(tensor: torch.Tensor, op=dist.ReduceOp.SUM) -> torch.Tensor:
    tensor = tensor.clone()
    dist.all_reduce(tensor, op)
    return tensor


def column_given(rank: int, n: int, width: int):
    """x, weight and bias whole on every rank; the gradient of this rank's outputs."""
    of_y = normal(4, B, T, F).chunk(n, -1)[rank].contiguous()
    return normal(1, B, T, width), normal(2, F, width), normal(3, F), of_y


def row_given(rank: int, n: int, width: int):
    """This rank's group of x, weight and bias whole; the gradient of y, whole."""
    x = normal(1, B, T, F).chunk(n, -1)[rank].contiguous()
    return x, normal(2, width, F), normal(3, width), normal(4, B, T, width)


def run_linear(given_to, worker, solve, width) -> dict:
    """Run the layer, and then its backward where all ranks have a y of the right shape."""
    torch.set_num_threads(1)
    given = given_to(worker.rank, worker.world_size, width)
    *inputs, of_y = given
    answer, seen = observed(solve, worker, *inputs)
    pair = isinstance(answer, tuple | list) and len(answer) == 2 and callable(answer[1])
    y = plain(answer[0]) if pair else None
    trace = {"form": "y and backward" if pair else short(plain(answer))}
    trace |= {"unwaited in the forward": seen["unwaited"], "y": y}
    trace["messages in the forward"] = seen["messages"]
    if not everywhere(isinstance(y, torch.Tensor) and y.shape == of_y.shape):
        return trace
    kept = [tensor.clone() for tensor in given]
    answer, seen = observed(answer[1], of_y)
    three = isinstance(answer, tuple | list) and len(answer) == 3
    trace["unwaited in the backward"] = seen["unwaited"]
    trace["form of the backward"] = "three gradients" if three else short(plain(answer))
    names = ("of_x", "of_weight", "of_bias")
    trace |= dict(zip(names, map(plain, answer if three else (None,) * 3), strict=True))
    pairs = zip(("x", "weight", "bias", "of_y"), given, kept, strict=True)
    trace["changed"] = tuple(name for name, now, old in pairs if not torch.equal(now, old))
    return trace | {"messages in the backward": seen["messages"]}


def column(worker, x, weight, bias):
    n, rank = worker.world_size, worker.rank
    own, own_bias = weight.chunk(n)[rank], bias.chunk(n)[rank]
    y = x @ own.t() + own_bias

    def backward(of_y):
        of_x = summed(of_y @ own)
        of_weight = of_y.flatten(0, 1).t() @ x.flatten(0, 1)
        of_bias = of_y.sum((0, 1))
        return of_x, of_weight, of_bias

    return y, backward


SIZES = (
    "Two sizes do not fit. Write the shape beside each tensor, also b: which dim of W belongs to "
    "the outputs, and which one do the ranks share?"
)
LINEAR = {  # what both layers share; each has slips of its own, and those of any gradient
    "cases": LAYERS,
    "close": 1e-12,
    "failures": ((r"mat1 and mat2|size of tensor|shapes cannot be|expanded size", SIZES, None),),
    "about": {
        "form": "Return y and a function: `return y, backward`.",
        "form of the backward": "The function takes the gradient of y and returns of_x, of_weight "
        "and of_bias.",
        "messages in the forward": "Which messages does the forward need, and of which tensor?",
        "messages in the backward": "Which messages does the backward need, and of which tensor? "
        "One all-reduce sends a whole tensor.",
    },
    "last": "Write the layer for N = 1 first, with its three gradients. Then write beside each "
    "tensor whether a rank has all of it, a group of it, or a part of a sum.",
}
GRADIENTS = (
    (Edit("of_y.flatten(0, 1).t() @ x.flatten(0, 1)", "x.flatten(0, 1).t() @ of_y.flatten(0, 1)"),
     "A gradient has the shape of its tensor. Yours is transposed."),
    (Edit("of_y.sum((0, 1))", "of_y.mean((0, 1))"), "Each number of the bias reaches all tokens: "
     "are their gradients added, or averaged?"),
)  # fmt: skip
GATHERED = (
    "The ranks have parts of one sum. Which collective adds them up, and gives the result to all "
    "ranks?"
)
column_linear = OnRanks(
    right=column,
    run=partial(run_linear, column_given),
    slips=(
        (Edit("summed(of_y @ own)", "of_y @ own / n"), "Divided by N. A mean belongs to ranks that "
         "see different data. Here all ranks are one layer: is its gradient a sum or a mean?"),
        (Edit("summed(of_y @ own)", "summed(of_y) @ own"),
         Edit("summed(of_y @ own)", "summed(summed(of_y) @ own)"),
         "You summed gradients of y, and each rank has those of its own outputs. Multiply by this "
         "rank's part of W first. Of which tensor does every rank then have a part?"),
        (Edit("y = x @ own.t()", "y = summed(x) @ own.t()"),
         Edit("y = x @ own.t() + own_bias", "y = summed(x @ own.t() + own_bias)"),
         Edit("y = x @ own.t() + own_bias", "y = summed(x @ own.t()) + own_bias"),
         "You sum in the forward. Every rank has the whole x already, and no two ranks compute "
         "the same output. In which direction does a copy of x need a sum?"),
        (Edit("own, own_bias = weight.chunk(n)[rank], bias.chunk(n)[rank]",
              "own, own_bias = weight, bias"), "Every rank computes all outputs. Which rows of W "
         "are this rank's own?"),
        (Edit("    def", "    parts = [torch.empty_like(y) for _ in range(n)]\n"
              "    dist.all_gather(parts, y)\n    y = torch.cat(parts, -1)\n\n    def"),
         "You gather the outputs of all ranks. Which of them does this rank return?"),
        (Edit("weight.chunk(n)[rank], bias.chunk(n)[rank]", "weight[rank::n], bias[rank::n]"),
         "The groups are neighbours: the first F/N outputs on rank 0. Yours are strided."),
        (Edit("bias.chunk(n)[rank]", "bias.chunk(n)[0]"), Edit(" + own_bias", ""), "Each output "
         "has its own number of the bias. Which F/N numbers belong to this rank?"),
        (Edit("weight.chunk(n)[rank]", "weight.chunk(n, dim=1)[rank]"),
         Edit("weight.chunk(n)[rank]", "weight.t().chunk(n)[rank]"), Edit("x @ own.t()", "x @ own"),
         SIZES),
        (Edit("y = x", "weight = weight.t() if weight.shape[0] == weight.shape[1] else weight\n"
              "    own = weight.chunk(n)[rank]\n    y = x"), "y = x Wᵀ: outputs are rows of W. "
         "Which dim did you cut, and which did you multiply?"),
        (Edit("y = x @ own.t() + own_bias", "whole = (x @ weight.t() + bias).chunk(n, -1)\n"
              "    y = whole[rank]", "of_x = summed(of_y @ own)",
              "of_x = [torch.empty_like(of_y) for _ in range(n)]\n"
              "        dist.all_gather(of_x, of_y)\n        of_x = torch.cat(of_x, -1) @ weight"),
         GATHERED),
        *GRADIENTS,
    ),
    **LINEAR,
)  # fmt: skip


def row(worker, x, weight, bias):
    n, rank = worker.world_size, worker.rank
    own = weight.chunk(n, 1)[rank]
    y = summed(x @ own.t()) + bias

    def backward(of_y):
        of_x = of_y @ own
        of_weight = of_y.flatten(0, 1).t() @ x.flatten(0, 1)
        of_bias = of_y.sum((0, 1))
        return of_x, of_weight, of_bias

    return y, backward


row_linear = OnRanks(
    right=row,
    run=partial(run_linear, row_given),
    slips=(
        (Edit("summed(x @ own.t()) + bias", "summed(x @ own.t() + bias)"), "Every rank has added "
         "the bias, and then you summed. How often is it in the sum?"),
        (Edit("summed(x @ own.t()) + bias", "x @ own.t() + bias"),
         Edit("summed(x @ own.t()) + bias", "x @ own.t()"),
         Edit("summed(x @ own.t())", "summed(x @ own.t(), dist.ReduceOp.MAX)"), "Each rank has the "
         "products of its own inputs only. Which message makes the ranks' parts one sum?"),
        (Edit(") + bias", ") / n + bias"), Edit(") + bias", ") / n"),
         Edit("summed(x @ own.t()) + bias", "summed(x @ own.t() + bias) / n"), "Divided by N. The "
         "ranks' products are parts of one matrix product. Is y their sum or their mean?"),
        (Edit("+ bias", ""), Edit("+ bias", "+ bias / n"),
         Edit("+ bias", "+ bias * (rank == 0)"), "The sum is right. Where does the bias come in, "
         "and how often?"),
        (Edit("weight.chunk(n, 1)[rank]", "weight[:, rank::n]"), "The groups are neighbours: the "
         "first F/N inputs on rank 0. Yours are strided."),
        (Edit("weight.chunk(n, 1)[rank]", "weight.chunk(n, 1)[0]"), "Every rank uses the same "
         "columns of W. Which columns multiply this rank's inputs?"),
        (Edit("weight.chunk(n, 1)[rank]", "weight"),
         Edit("weight.chunk(n, 1)[rank]", "weight.chunk(n)[rank]"), Edit("own.t()", "own"), SIZES),
        (Edit("weight.chunk(n, 1)[rank]", "(weight.t() if weight.shape[0] == weight.shape[1] else "
              "weight).chunk(n, 1)[rank]"), "y = x Wᵀ: inputs are columns of W. Which dim did you "
         "cut, and which did you sum?"),
        (Edit("of_x = of_y @ own", "of_x = of_y @ weight"), "That is the gradient of all groups. "
         "Return this rank's group."),
        (Edit("of_x = of_y @ own", "of_y = summed(of_y)\n        of_x = of_y @ own"),
         Edit("of_y.sum((0, 1))", "summed(of_y.sum((0, 1)))"), "Summed over ranks that all had the "
         "same numbers. The gradient of y is whole on every rank: does this backward need a "
         "message?"),
        (Edit("y = summed(x @ own.t()) + bias", "y = [torch.empty_like(x) for _ in range(n)]\n"
              "    dist.all_gather(y, x)\n    y = torch.cat(y, -1) @ weight.t() + bias"),
         Edit("y = summed(x @ own.t()) + bias", "y = x @ own.t() + bias\n"
              "    parts = [torch.empty_like(y) for _ in range(n)]\n"
              "    dist.all_gather(parts, y)\n    y = torch.cat(parts, -1)"), GATHERED),
        *GRADIENTS,
    ),
    **LINEAR,
)  # fmt: skip


# vocabulary_cross_entropy

LOSSES = (  # the parts of the vocabulary, whether some targets are ignored, sign of huge logits
    ((6, 6), False, 0),
    ((7, 2, 4), True, 0),
    ((2, 5, 1, 6), False, 1),
    ((5, 8), True, -1),
)
ROWS, TOKENS = 2, 6
MOST = 5  # messages, and numbers for each token in all messages together; 3 are enough
HUGE = 10_000.0  # exp overflows in float64 from 710 on


def logits_and_targets(sizes, ignored: bool, huge: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole logits (B, T, V) and the targets (B, T): some of each rank, some at its edges."""
    generator = torch.Generator().manual_seed(hidden.seed(5))
    logits = torch.randn(ROWS, TOKENS, sum(sizes), generator=generator, dtype=torch.float64)
    edges = torch.tensor(sizes).cumsum(0)
    targets = torch.randint(sum(sizes), (ROWS, TOKENS), generator=generator)
    targets[0, : len(sizes)] = edges - 1  # the last token of each part
    targets[1, : len(sizes) - 1] = edges[:-1]  # the first token of each part but the first part
    if ignored:
        targets[1, -2:] = IGNORED
        targets[0, -1] = IGNORED
    logits[0] += huge * HUGE
    if huge:
        logits[0, 4, : sizes[0]] -= 2 * HUGE  # far below the other ranks'
    return logits, targets


def own_logits(worker, sizes, ignored, huge):
    logits, targets = logits_and_targets(sizes, ignored, huge)
    mine = logits.split(sizes, -1)[worker.rank].contiguous()
    return mine, targets, sum(sizes[: worker.rank])


def judge_messages(trace, right, ranks, case):
    """Refuse messages whose size grows with the vocabulary, and a message for each token."""
    most = MOST * ROWS * TOKENS * 8
    for rank, messages in enumerate(trace["messages"]):
        if sum(nbytes for _, nbytes in messages) > most:
            own = ROWS * TOKENS * case["sizes"][rank] * 8
            raise NotRight(
                f"rank {rank} sent {sent(messages)}; its own logits are {own:,} bytes, and one "
                f"number for each token is {most // MOST:,} bytes",
                "Your messages grow with the vocabulary. Write the loss of a token as a sum over "
                "the vocabulary: which numbers for each token can each rank compute alone, and "
                "then add?",
            )
        if len(messages) > MOST:
            raise NotRight(
                f"rank {rank} started {len(messages)} messages",
                "Each message has a latency. Send all tokens' numbers together.",
            )


def cross_entropy(worker, logits, targets, start):
    largest = summed(logits.amax(-1), dist.ReduceOp.MAX)
    shifted = logits - largest[..., None]
    rows, size = targets - start, logits.shape[-1]
    here = (rows >= 0) & (rows < size)
    rows = rows.clamp(0, size - 1)[..., None]
    own = shifted.gather(-1, rows)[..., 0] * here
    parts = shifted.exp().sum(-1)
    total, target, counted = summed(parts), summed(own), targets != -100
    loss = ((total.log() - target) * counted).sum()
    one = torch.zeros_like(logits).scatter_(-1, rows, here[..., None].to(logits))
    of_logits = (shifted.exp() / total[..., None] - one) * counted[..., None]
    return loss, of_logits


def no_care_for_rows(worker, logits, targets, start):
    return logits.gather(-1, targets[..., None] - start), logits


OWN_MAX = ("summed(logits.amax(-1), dist.ReduceOp.MAX)", "logits.amax(-1)")
ALONE = (*OWN_MAX, "summed(parts)", "parts", "summed(own)", "own")  # no message
LOSS, GRADIENT = "* counted).sum()", "* counted[..., None]"
RETURN = "return loss, of_logits"
vocabulary_cross_entropy = OnRanks(
    right=cross_entropy,
    given=own_logits,
    names=("the loss", "the gradient of this rank's logits"),
    cases=tuple(
        (len(sizes), {"sizes": sizes, "ignored": ignored, "huge": huge})
        for sizes, ignored, huge in LOSSES
    ),
    close=1e-12,
    free=("messages",),
    rule=judge_messages,
    slips=(
        (Edit(*ALONE), Edit(*ALONE, LOSS, "* here).sum()"),
         Edit(*ALONE, LOSS, "* here).sum()\n    loss = summed(loss)"),
         Edit("summed(parts)", "parts"),
         Edit(RETURN, "return loss, (logits.softmax(-1) - one) * counted[..., None]"),
         Edit(RETURN, "one = one * here[..., None]\n    return loss, "
              "(logits.softmax(-1) - one) * (counted & here)[..., None]"),
         "That is a softmax over this rank's part of the vocabulary alone. Which sum in the "
         "softmax runs over the whole vocabulary?"),
        (Edit(*OWN_MAX), "Each rank has subtracted its own maximum, and then you added "
         "exponentials. Which maximum must all ranks subtract?"),
        (Edit(OWN_MAX[0], "logits.amax(-1) * 0"), "exp of a large logit overflows. Which number "
         "may you subtract from all logits of a token, on all ranks, without a change of the "
         "softmax?"),
        (Edit(", dist.ReduceOp.MAX", ""), "The logarithm of 0: too large a number was subtracted "
         "before exp. Is it the largest logit, or a sum of the ranks' largest? An all-reduce adds "
         "unless you name another operation."),
        (Edit("summed(own)", "own"), "On the other ranks the target's logit is missing. How does "
         "it reach them?"),
        (Edit(LOSS, "* counted * here).sum()"), "That is the loss of this rank's own targets. "
         "Every rank needs the whole loss."),
        (Edit("targets - start", "targets"), "A target counts from the first token of the "
         "vocabulary, a row from this rank's first token. Which row is the target's?"),
        (Edit("[..., 0] * here", "[..., 0]"),
         Edit("[..., 0] * here", "[..., 0]", "here[..., None].to(logits)", "1.0"), "Each target "
         "has its logit on one rank only. What must the other ranks contribute to the sum?"),
        (Edit(LOSS, ").sum()"), Edit(LOSS, ").sum()", " " + GRADIENT, ""), Edit(" " + GRADIENT, ""),
         "A place whose target is -100 counts for nothing. Where does your sum include it?"),
        (Edit(RETURN, "return loss / counted.sum(), of_logits"),
         Edit(RETURN, "return loss / counted.numel(), of_logits"), Edit(LOSS, "* counted)"),
         Edit(RETURN, "return loss, of_logits / counted.sum()"),
         Edit(RETURN, "return loss, of_logits / counted.numel()"),
         "Return the sum over the places with a target, not a mean: the caller divides once."),
        (Edit("total[..., None] - one", "total[..., None]"),
         Edit("total[..., None] - one) * counted[..., None]", "total[..., None])"), "Softmax alone "
         "is the gradient of the logarithm of the sum. What does the target's own logit add, and "
         "what is the gradient at a place whose target is -100?"),
        (Edit(RETURN, "return loss, of_logits * here[..., None]"), "Each rank's logits are in "
         "every token's sum, also where another rank has the target. Which places are zero in your "
         "gradient?"),
        (Edit("here[..., None].to(logits)", "1.0"), "You subtract 1 on each rank. On which rank is "
         "the target's row?"),
    ),
    failures=(
        (r"out of bounds|IndexError", "A target is a token of the whole vocabulary, or -100. Which "
         "row of this rank's logits is it? And what if it is not here?", no_care_for_rows),
        (r"must match the size|same size", "The parts of the vocabulary differ in size. Which of "
         "your messages depends on v?", None),
    ),
    last="Write down for one token: the logarithm of a sum over the vocabulary, minus one logit. "
    "Which of the two needs all ranks?",
)  # fmt: skip
