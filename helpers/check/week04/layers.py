"""Exercises of week 4 on ranks: two linear layers, a loss and gradients, cut over the ranks.

B  sequences        T  tokens        D  width        F  inner width, cut over N ranks
V  vocabulary       v  this rank's part of it
"""

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.answers import is_number, plain, short
from helpers.check.exercise import Edit
from helpers.check.ranks import OnRanks, everywhere, observed, sent
from helpers.check.verdict import NotRight
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import IGNORED, random_batch
from helpers.models.gpt import GPTConfig, build
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.state.slicing import fill

B, T, F = 2, 3, 12  # N divides F; where D = F, a transposed weight has the right shape
LAYERS = ((2, {"width": 5}), (3, {"width": 5}), (4, {"width": 12}))
FORM = (
    "Return y and a function: `return y, backward`. The function takes the gradient of y and "
    "returns of_x, of_weight and of_bias."
)
GRADIENTS = "what backward returns"


def numbers(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hidden.seed(seed))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def summed(tensor: torch.Tensor, op=dist.ReduceOp.SUM) -> torch.Tensor:
    tensor = tensor.clone()
    dist.all_reduce(tensor, op)
    return tensor


def column_given(rank: int, n: int, width: int):
    """x, weight and bias whole on every rank; the gradient of this rank's outputs."""
    of_y = numbers(B, T, F, seed=4).chunk(n, -1)[rank].contiguous()
    return numbers(B, T, width, seed=1), numbers(F, width, seed=2), numbers(F, seed=3), of_y


def row_given(rank: int, n: int, width: int):
    """This rank's group of x, weight and bias whole; the gradient of y, whole."""
    x = numbers(B, T, F, seed=1).chunk(n, -1)[rank].contiguous()
    return x, numbers(width, F, seed=2), numbers(width, seed=3), numbers(B, T, width, seed=4)


def run_column(worker, solve, width):
    given = column_given(worker.rank, worker.world_size, width)
    return run_linear(worker, solve, given, given[-1].shape)


def run_row(worker, solve, width):
    given = row_given(worker.rank, worker.world_size, width)
    return run_linear(worker, solve, given, given[-1].shape)


def run_linear(worker, solve, given, shape) -> dict:
    torch.set_num_threads(1)
    *inputs, of_y = given
    answer, seen = observed(solve, worker, *inputs)
    pair = isinstance(answer, tuple | list) and len(answer) == 2 and callable(answer[1])
    y = plain(answer[0]) if pair else None
    trace = {"form": "y and backward" if pair else short(plain(answer))}
    trace |= {"unwaited in the forward": seen["unwaited"], "y": y}
    trace["messages in the forward"] = seen["messages"]
    if not everywhere(isinstance(y, torch.Tensor) and y.shape == shape):
        return trace
    kept = [tensor.clone() for tensor in given]
    answer, seen = observed(answer[1], of_y)
    three = isinstance(answer, tuple | list) and len(answer) == 3
    trace["unwaited in the backward"] = seen["unwaited"]
    trace[GRADIENTS] = "three gradients" if three else short(plain(answer))
    names = ("of_x", "of_weight", "of_bias")
    trace |= dict(zip(names, map(plain, answer if three else (None,) * 3), strict=True))
    names = ("x", "weight", "bias", "of_y")
    pairs = zip(names, given, kept, strict=True)
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


def never_waits(worker, x, weight, bias):
    y, _ = column(worker, x, weight, bias)

    def backward(of_y):
        of_x = of_y @ weight.chunk(worker.world_size)[worker.rank]
        dist.all_reduce(of_x, async_op=True)
        return of_x, of_y.flatten(0, 1).t() @ x.flatten(0, 1), of_y.sum((0, 1))

    return y, backward


SIZES = (
    "Two sizes do not fit. Write the shape beside each tensor: which dim of W belongs to the "
    "outputs, and which one do the ranks share?"
)
MISFIT = (r"mat1 and mat2|size of tensor|shapes cannot be|expanded size", SIZES, None)
FROM_SUMS = (
    "You summed gradients of y, and each rank has those of its own outputs. Multiply by this "
    "rank's part of W first. Of which tensor does every rank then have a part?"
)
NO_MEAN = (
    "Divided by N. A mean belongs to ranks that see different data. Here all ranks are one layer: "
    "is its gradient a sum or a mean?"
)
FORWARD_SUM = (
    "You sum in the forward. Every rank has the whole x already, and no two ranks compute the same "
    "output. In which direction does a copy of x need a sum?"
)
GROUPS = (
    "You summed groups that belong to different ranks. Only copies of one parameter need a sum: "
    "which other rank has this group?"
)
SHARE = "Divided by N. Each number of the gradient belongs to one rank: nothing to share."
TRANSPOSED = "A gradient has the shape of its tensor. Yours is transposed."
ADDED = "Each number of the bias reaches all tokens: are their gradients added, or averaged?"
ONE_ENOUGH = "One all-reduce is enough. Which tensor is it that must be summed?"
OWN = (
    "An all-reduce writes into its tensor. Autograd, or another layer, may still need the old "
    "numbers. Which tensor is your own?"
)
GATHERED = (
    "The ranks have parts of one sum. Which collective adds them up, and gives the result to all "
    "ranks?"
)
DTYPE = "The inputs are in float64. Which line makes a tensor of another dtype?"
NO_NEED = "Each rank could have computed its result alone. Which message can you leave out?"
BIAS = "Each output has its own number of the bias. Which F/N numbers belong to this rank?"
LAYER_LAST = (
    "Write the layer for N = 1 first, with its three gradients. Then write beside each tensor "
    "whether a rank has all of it, a group of it, or a part of a sum."
)
column_linear = OnRanks(
    name="column_linear",
    right=column,
    run=run_column,
    cases=LAYERS,
    close=1e-12,
    slips=(
        (Edit("summed(of_y @ own)", "of_y @ own"), "Every rank used x, so the gradient of x is a "
         "sum over the ranks. You have this rank's part. Which message does the backward need?"),
        (Edit("summed(of_y @ own)", "summed(of_y @ own) / n"), NO_MEAN),
        (Edit("summed(of_y @ own)", "of_y @ own / n"), NO_MEAN),
        (Edit("summed(of_y @ own)", "summed(summed(of_y @ own))"), "Summed once too often. How "
         "many ranks had the whole sum already?"),
        (Edit("summed(of_y @ own)", "summed(of_y) @ own"), FROM_SUMS),
        (Edit("summed(of_y @ own)", "summed(summed(of_y) @ own)"), FROM_SUMS),
        (Edit("return of_x, of", "of_y = summed(of_y)\n        of_x = of_x\n        return of_x, "
         "of"),
         ONE_ENOUGH),
        (Edit("y = x @ own.t()", "y = summed(x) @ own.t()"), FORWARD_SUM),
        (Edit("y = x @ own.t() + own_bias", "y = summed(x @ own.t() + own_bias)"), FORWARD_SUM),
        (Edit("y = x @ own.t() + own_bias", "y = summed(x @ own.t()) + own_bias"), FORWARD_SUM),
        (Edit("y = x", "y = summed(x) / n"), NO_NEED),
        (Edit("own, own_bias = weight.chunk(n)[rank], bias.chunk(n)[rank]",
              "own, own_bias = weight, bias"), "Every rank computes all outputs. Which rows of W "
         "are this rank's own?"),
        (Edit("weight.chunk(n)[rank], bias.chunk(n)[rank]", "weight.chunk(n)[0], bias.chunk(n)[0]"),
         "These are another rank's outputs. On which number does the cut depend?"),
        (Edit("weight.chunk(n)[rank], bias.chunk(n)[rank]", "weight[rank::n], bias[rank::n]"),
         "The groups are neighbours: the first F/N outputs on rank 0. Yours are strided."),
        (Edit("bias.chunk(n)[rank]", "bias.chunk(n)[0]"), BIAS),
        (Edit(" + own_bias", ""), BIAS),
        (Edit("weight.chunk(n)[rank]", "weight.chunk(n, dim=1)[rank]"), SIZES),
        (Edit("weight.chunk(n)[rank]", "weight.t().chunk(n)[rank]"), SIZES),
        (Edit("x @ own.t()", "x @ own"), SIZES),
        (Edit("y = x", "weight = weight.t() if weight.shape[0] == weight.shape[1] else weight\n"
              "    own = weight.chunk(n)[rank]\n    y = x"), "y = x Wᵀ: outputs are rows of W. "
         "Which dim did you cut, and which did you multiply?"),
        (Edit("@ x.flatten(0, 1)\n", "@ x.flatten(0, 1)\n        of_weight = summed(of_weight)\n"),
         GROUPS),
        (Edit("of_y.sum((0, 1))", "summed(of_y.sum((0, 1)))"), GROUPS),
        (Edit("of_y.sum((0, 1))", "summed(of_y.sum((0, 1))) / n"), GROUPS),
        (Edit("of_weight = of_y.flatten(0, 1).t() @ x.flatten(0, 1)",
              "of_weight = x.flatten(0, 1).t() @ of_y.flatten(0, 1)"), TRANSPOSED),
        (Edit("@ x.flatten(0, 1)", "@ x.flatten(0, 1) / n"), SHARE),
        (Edit("of_y.sum((0, 1))", "of_y.sum((0, 1)) / n"), SHARE),
        (Edit("of_y.sum((0, 1))", "of_y.mean((0, 1))"), ADDED),
        (Edit("summed(of_y @ own)", "torch.stack([summed(row) for row in of_y @ own])"),
         ONE_ENOUGH),
        (Edit("summed(of_y @ own)", "summed(of_y @ own).float()"), DTYPE),
        (Edit("+ own_bias", "+ own_bias.float()\n    y = y.float()"), DTYPE),
        (Edit("y = x @ own.t() + own_bias", "whole = (x @ weight.t() + bias).chunk(n, -1)\n"
              "    y = whole[rank]", "of_x = summed(of_y @ own)",
              "of_x = [torch.empty_like(of_y) for _ in range(n)]\n"
              "        dist.all_gather(of_x, of_y)\n        of_x = torch.cat(of_x, -1) @ weight"),
         GATHERED),
        (never_waits, "An all-reduce with async_op=True only starts. When may you read its "
         "result?"),
        (Edit("return of_x, of", "of_y.mul_(2)\n        return of_x, of"), OWN),
        (Edit("return y, backward", "return y"), FORM),
        (Edit("return of_x, of_weight, of_bias", "return of_x"), FORM),
    ),
    failures=(MISFIT,),
    last=LAYER_LAST,
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


PART = (
    "Each rank has the products of its own inputs only. Which message makes the ranks' parts one y?"
)
OFTEN = "Every rank has added the bias, and then you summed. How often is it in the sum?"
SUM_OR_MEAN = (
    "Divided by N. The ranks' products are parts of one matrix product. Is y their sum or their "
    "mean?"
)
COPIES = (
    "Summed over ranks that all had the same numbers. The gradient of y is whole on every rank: "
    "does this backward need a message?"
)
N_TIMES = (
    "Every rank has the whole gradient of y, and so the whole gradient of the bias. What would a "
    "sum over ranks count N times?"
)
OWN_INPUTS = (
    "Each rank's inputs are its own: no other rank has this part of the gradient of x. Which "
    "message is too much?"
)
row_linear = OnRanks(
    name="row_linear",
    right=row,
    run=run_row,
    cases=LAYERS,
    close=1e-12,
    slips=(
        (Edit("summed(x @ own.t()) + bias", "summed(x @ own.t() + bias)"), OFTEN),
        (Edit("summed(x @ own.t()) + bias", "x @ own.t() + bias"), PART),
        (Edit("summed(x @ own.t()) + bias", "x @ own.t()"), PART),
        (Edit(") + bias", ") / n + bias"), SUM_OR_MEAN),
        (Edit(") + bias", ") / n"), SUM_OR_MEAN),
        (Edit("summed(x @ own.t()) + bias", "summed(x @ own.t() + bias) / n"), SUM_OR_MEAN),
        (Edit("+ bias", ""), "The sum is right. Where does the bias come in, and how often?"),
        (Edit("+ bias", "+ bias / n"), "The sum is right. Where does the bias come in, and how "
         "often?"),
        (Edit("weight.chunk(n, 1)[rank]", "weight.chunk(n, 1)[0]"), "Every rank uses the same "
         "columns of W. Which columns multiply this rank's inputs?"),
        (Edit("weight.chunk(n, 1)[rank]", "weight"), SIZES),
        (Edit("weight.chunk(n, 1)[rank]", "weight.chunk(n)[rank]"), SIZES),
        (Edit("own.t()", "own"), SIZES),
        (Edit("weight.chunk(n, 1)[rank]", "(weight.t() if weight.shape[0] == weight.shape[1] else "
              "weight).chunk(n, 1)[rank]"), "y = x Wᵀ: inputs are columns of W. Which dim did you "
         "cut, and which did you sum?"),
        (Edit("of_x = of_y @ own", "of_x = summed(of_y @ own)"), OWN_INPUTS),
        (Edit("of_x = of_y @ own", "of_x = of_y @ weight"), "That is the gradient of all groups. "
         "Return this rank's group."),
        (Edit("of_x = of_y @ own", "of_x = of_y @ own / n"), SHARE),
        (Edit("of_x = of_y @ own", "of_y = summed(of_y)\n        of_x = of_y @ own"), COPIES),
        (Edit("of_x = of_y @ own", "of_y = summed(of_y) / n\n        of_x = of_y @ own"), NO_NEED),
        (Edit("of_y.sum((0, 1))", "summed(of_y.sum((0, 1)))"), N_TIMES),
        (Edit("of_y.sum((0, 1))", "of_y.sum((0, 1)) / n"), "Divided by N. Every rank has the whole "
         "bias. Does its gradient need a share, or all of it?"),
        (Edit("of_y.sum((0, 1))", "of_y.mean((0, 1))"), ADDED),
        (Edit("@ x.flatten(0, 1)\n", "@ x.flatten(0, 1)\n        of_weight = summed(of_weight)\n"),
         GROUPS),
        (Edit("of_weight = of_y.flatten(0, 1).t() @ x.flatten(0, 1)",
              "of_weight = x.flatten(0, 1).t() @ of_y.flatten(0, 1)"), TRANSPOSED),
        (Edit("@ x.flatten(0, 1)", "@ x.flatten(0, 1) / n"), SHARE),
        (Edit("summed(x @ own.t())", "torch.stack([summed(one) for one in x @ own.t()])"),
         ONE_ENOUGH),
        (Edit("y = summed(x @ own.t()) + bias", "y = [torch.empty_like(x) for _ in range(n)]\n"
              "    dist.all_gather(y, x)\n    y = torch.cat(y, -1) @ weight.t() + bias"), GATHERED),
        (Edit("return y, backward", "return y"), FORM),
        (Edit("return of_x, of_weight, of_bias", "return of_x"), FORM),
    ),
    failures=(MISFIT,),
    last=LAYER_LAST,
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


def run_loss(worker, solve, sizes, ignored, huge):
    torch.set_num_threads(1)
    logits, targets = logits_and_targets(sizes, ignored, huge)
    mine = logits.split(sizes, -1)[worker.rank].contiguous()
    start = sum(sizes[: worker.rank])
    names = ("logits", "targets")
    answer, seen = observed(solve, worker, mine, targets, start, names=names)
    pair = isinstance(answer, tuple | list) and len(answer) == 2
    loss, of = answer if pair else (None, None)
    return {
        "form": "two tensors" if pair else short(plain(answer)),
        "unwaited": seen["unwaited"],
        "the loss": torch.tensor(loss).double() if is_number(loss) else plain(loss),
        "the gradient": plain(of),
        "changed": seen["changed"],
        "messages": seen["messages"],
    }


def judge_messages(trace, right, ranks, case):
    """Refuse messages whose size grows with the vocabulary, and a message for each token."""
    most = MOST * ROWS * TOKENS * 8
    for rank, messages in enumerate(trace["messages"]):
        if sum(nbytes for _, nbytes in messages) > most:
            own = ROWS * TOKENS * case["sizes"][rank] * 8
            raise NotRight(
                f"rank {rank} sent {sent(messages)}; its own logits are {own:,} bytes, and one "
                f"number for each token is {most // MOST:,} bytes",
                GROWS,
            )
        if len(messages) > MOST:
            raise NotRight(f"rank {rank} started {len(messages)} messages", EACH_TOKEN)


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


LOCAL = (
    "That is a softmax over this rank's part of the vocabulary alone. Which sum in the softmax "
    "runs over the whole vocabulary?"
)
COUNTS = "A place whose target is -100 counts for nothing. Where does your sum include it?"
SHIFT = (
    "A target counts from the first token of the vocabulary, a row from this rank's first token. "
    "Which row is the target's?"
)
EVERY = (
    "Each target has its logit on one rank only. What must the other ranks contribute to the sum?"
)
MAXIMUM = (
    "Each rank has subtracted its own maximum, and then you added exponentials. Which maximum must "
    "all ranks subtract?"
)
A_SUM = "Return the sum over the places with a target, not a mean: the caller divides once."
GROWS = (
    "Your messages grow with the vocabulary. Write the loss of a token as a sum over the "
    "vocabulary: which numbers for each token can each rank compute alone, and then add?"
)
EACH_TOKEN = "Each message has a latency. Send all tokens' numbers together."
OVERFLOW = (
    "exp of a large logit overflows. Which number may you subtract from all logits of a token, on "
    "all ranks, without a change of the softmax?"
)
TOO_MUCH = "Summed over ranks that all had the whole number. Which all-reduce is too much?"
OVER_N = "Divided by N. Which of your sums is over the ranks, and already whole?"
ALONE = (
    "Softmax alone is the gradient of the logarithm of the sum. What does the target's own logit "
    "add?"
)
DIMS = "A wrong shape. Over which dims do you sum?"
RETURN_LOSS = "return loss, of_logits"
vocabulary_cross_entropy = OnRanks(
    name="vocabulary_cross_entropy",
    right=cross_entropy,
    run=run_loss,
    cases=tuple(
        (len(sizes), {"sizes": sizes, "ignored": ignored, "huge": huge})
        for sizes, ignored, huge in LOSSES
    ),
    close=1e-12,
    free=("messages",),
    rule=judge_messages,
    slips=(
        (Edit("summed(logits.amax(-1), dist.ReduceOp.MAX)", "logits.amax(-1)", "summed(parts)",
              "parts", "summed(own)", "own"), LOCAL),
        (Edit("summed(logits.amax(-1), dist.ReduceOp.MAX)", "logits.amax(-1)", "summed(parts)",
              "parts", "summed(own)", "own", "* counted).sum()", "* here).sum()"), LOCAL),
        (Edit("summed(logits.amax(-1), dist.ReduceOp.MAX)", "logits.amax(-1)", "summed(parts)",
              "parts", "summed(own)", "own", "* counted).sum()", "* here).sum()\n"
              "    loss = summed(loss)"), LOCAL),
        (Edit("summed(parts)", "parts"), LOCAL),
        (Edit("summed(logits.amax(-1), dist.ReduceOp.MAX)", "logits.amax(-1)"), MAXIMUM),
        (Edit("summed(logits.amax(-1), dist.ReduceOp.MAX)", "logits.amax(-1) * 0"), OVERFLOW),
        (Edit(", dist.ReduceOp.MAX", ""), "The logarithm of 0: too large a number was subtracted "
         "before exp. Is it the largest logit, or a sum of the ranks' largest? An all-reduce adds "
         "unless you name another operation."),
        (Edit("summed(own)", "own"), "On the other ranks the target's logit is missing. How does "
         "it reach them?"),
        (Edit("* counted).sum()", "* counted * here).sum()"), "That is the loss of this rank's own "
         "targets. Every rank needs the whole loss."),
        (Edit("targets - start", "targets"), SHIFT),
        (Edit("[..., 0] * here", "[..., 0]"), EVERY),
        (Edit("[..., 0] * here", "[..., 0]", "here[..., None].to(logits)", "1.0"), EVERY),
        (Edit(" * counted).sum()", ").sum()"), COUNTS),
        (Edit(" * counted).sum()", ").sum()", " * counted[..., None]", ""), COUNTS),
        (Edit(RETURN_LOSS, "return loss / counted.sum(), of_logits"), A_SUM),
        (Edit(RETURN_LOSS, "return loss / counted.numel(), of_logits"), A_SUM),
        (Edit("* counted).sum()", "* counted)"), A_SUM),
        (Edit(RETURN_LOSS, "return summed(loss), of_logits"), TOO_MUCH),
        (Edit(RETURN_LOSS, "return loss / worker.world_size, of_logits"), OVER_N),
        (Edit(RETURN_LOSS, "return loss.float(), of_logits"), DTYPE),
        (Edit(RETURN_LOSS, "return loss.expand(3), of_logits"), DIMS),
        (Edit("largest = summed", "logits = logits.float()\n    largest = summed"), DTYPE),
        (Edit(RETURN_LOSS, "return loss, (logits.softmax(-1) - one) * counted[..., None]"), LOCAL),
        (Edit(RETURN_LOSS, "one = one * here[..., None]\n    return loss, "
              "(logits.softmax(-1) - one) * (counted & here)[..., None]"), LOCAL),
        (Edit("total[..., None] - one", "total[..., None]"), ALONE),
        (Edit("total[..., None] - one) * counted[..., None]", "total[..., None])"), "Softmax "
         "alone. What does the target's own logit add, and what is the gradient at a place whose "
         "target is -100?"),
        (Edit(" * counted[..., None]", ""), COUNTS),
        (Edit(RETURN_LOSS, "return loss, -of_logits"), "The sign is wrong: a larger logit of the "
         "target makes the loss smaller."),
        (Edit(RETURN_LOSS, "return loss, of_logits * here[..., None]"), "Each rank's logits are in "
         "every token's sum, also where another rank has the target. Which places are zero in your "
         "gradient?"),
        (Edit("here[..., None].to(logits)", "1.0"), "You subtract 1 on each rank. On which rank is "
         "the target's row?"),
        (Edit(RETURN_LOSS, "return loss, of_logits / counted.sum()"), A_SUM),
        (Edit(RETURN_LOSS, "return loss, of_logits / counted.numel()"), A_SUM),
        (Edit(RETURN_LOSS, "return loss, of_logits * worker.world_size"), TOO_MUCH),
        (Edit(RETURN_LOSS, "return loss, of_logits / worker.world_size"), OVER_N),
        (Edit(RETURN_LOSS, "return loss, of_logits.sum(1)"), DIMS),
        (Edit(RETURN_LOSS, "summed(torch.zeros(2, 6, 40).double())\n    " + RETURN_LOSS), GROWS),
        (Edit(RETURN_LOSS, "for _ in range(12):\n        summed(total[0, 0])\n    " + RETURN_LOSS),
         EACH_TOKEN),
        (Edit(RETURN_LOSS, "logits.exp_()\n    " + RETURN_LOSS), "Which line works in place? "
         "Another layer may still need the old numbers."),
        (Edit(RETURN_LOSS, "dist.all_reduce(torch.zeros(1), async_op=True)\n    " + RETURN_LOSS),
         "An all-reduce with async_op=True only starts. When may you read its result?"),
        (Edit(RETURN_LOSS, "return loss"), "Return two tensors: the loss, and the gradient of this "
         "rank's logits."),
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
    model, parts = sequence_parallel(
        CONFIG, 1, make_mesh(Layout(tp=worker.world_size)), torch.float64
    )
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
                COMPLETE,
            )


def partial_sums(worker, model, cut):
    for name, parameter in model.named_parameters():
        if name not in cut and parameter.grad is not None:
            dist.all_reduce(parameter.grad)


CHOICE = "name not in cut and parameter.grad is not None"
CALL = "dist.all_reduce(parameter.grad)"
COMPLETE = "Which gradients were complete already, or travelled twice?"
CUT = (
    "A cut parameter belongs to one rank, and its gradient was complete: the layer gathers all "
    "tokens before it multiplies. Which parameters does every rank have?"
)
SAW = (
    "The gradients of norms are not summed. A norm saw this rank's T/N tokens only, and every rank "
    "has the same norm."
)
sum_partial_gradients = OnRanks(
    name="sum_partial_gradients",
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
        (Edit(CHOICE, CHOICE + " and 'norm' not in name"), SAW),
        (Edit(CHOICE, CHOICE + " and name.endswith('.bias')"), SAW),
        (Edit(CHOICE, CHOICE + " and 'norm' in name"), "A bias is missing. The bias of a "
         "row-parallel layer is added after the reduce-scatter: to how many tokens?"),
        (Edit(CHOICE, CHOICE + " and ('norm' in name or name.endswith('.bias'))"), "Some "
         "parameters are neither norms nor biases. Which tokens used them on this rank?"),
        (Edit(CHOICE, "parameter.grad is not None"), CUT),
        (Edit(CHOICE, "name in cut and parameter.grad is not None"), CUT),
        (Edit(CALL, CALL + "\n            parameter.grad /= worker.world_size"), "Divided by N. "
         "The ranks saw different tokens of one sum. Does one process take the mean over groups of "
         "its tokens?"),
        (Edit(CALL, "parameter.grad /= worker.world_size"), "Divided by N. The ranks saw different "
         "tokens of one sum. Does one process take the mean over groups of its tokens?"),
        (Edit(CALL, CALL + "\n            " + CALL), "Summed once more after the sum was there. "
         "Which message is one too many?"),
        (Edit(CALL, CALL + "\n            parameter.grad = parameter.grad.float().double()"),
         "The gradients are in float64. Which line makes a tensor of another dtype?"),
        (Edit(CALL, "dist.all_reduce(parameter.grad, async_op=True)"), "An all-reduce with "
         "async_op=True only starts. When may you read its result?"),
        (Edit(CHOICE, "name not in cut"), "A frozen parameter has no gradient: its `.grad` is None "
         "on every rank."),
        (Edit("for name, parameter in", "dist.all_reduce(torch.zeros(9999))\n    for name, "
              "parameter in"), COMPLETE),
    ),
    last="Add up `.grad` over the ranks, in place. Which number has changed besides?",
)  # fmt: skip
