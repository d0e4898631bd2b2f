"""Exercises of week 6 on ranks: tensors as one flat, padded buffer, and steps of ZeRO stage 1."""

import gc
import math
from collections.abc import Iterator

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.answers import plain, same, short
from helpers.check.exercise import Edit
from helpers.check.hidden import normal
from helpers.check.ranks import DIFFER, OnRanks, everywhere, observed
from helpers.check.verdict import NotRight
from helpers.comm.collectives import ring_reduce_scatter
from helpers.measure.memory import LiveStorages, bytes_of

PATIENCE = 4  # times the usual timeout: on a busy machine, a rank imports for seconds

# shard_flat

DTYPE = torch.float64


def numbers(shapes) -> list[torch.Tensor]:
    """1, 2, 3, … over all tensors: no two numbers are equal, and none is 0."""
    start, made = 1 + hidden.shift(99), []
    for shape in shapes:
        count = math.prod(shape)
        made.append(torch.arange(start, start + count, dtype=DTYPE).view(shape))
        start += count
    return made


def run_flat(worker, solve, shapes):
    tensors = numbers(shapes)
    gc.freeze()  # so that the collection below looks only at what follows
    with LiveStorages([]) as live:
        answer = solve(worker, tensors)
    pairs = zip(tensors, numbers(shapes), strict=True)
    changed = ("its tensors",) * (not all(torch.equal(now, old) for now, old in pairs))
    pair = isinstance(answer, tuple | list) and len(answer) == 2
    if not pair or not isinstance(answer[0], torch.Tensor) or not callable(answer[1]):
        return {"changed": changed, "what is returned": short(plain(answer))}
    shard, gather = answer
    trace = {
        "changed": changed,
        "what is returned": "a shard and gather",
        "the shard": plain(shard),
        "the shard's dtype": str(shard.dtype),
        "bytes that the shard keeps": bytes_of(shard),
    }
    del tensors, answer, pairs
    gc.collect()
    trace["bytes besides the shard"] = live.now - bytes_of(shard)
    size = -(-sum(map(math.prod, shapes)) // worker.world_size)
    if not everywhere(shard.shape == (size,) and shard.dtype == DTYPE):
        return trace  # a gather of such shards could end the ranks
    gathered, seen = observed(gather, shard)
    trace |= {"unwaited": seen["unwaited"], "gathered": plain(gathered)}
    tensors = gathered if isinstance(gathered, list | tuple) else ()
    trace["dtypes"] = tuple(str(getattr(one, "dtype", None)) for one in tensors)
    with torch.no_grad():
        shard.mul_(-1)
    trace["gathered from other shards"] = plain(gather(shard))
    return trace | {"messages": seen["messages"]}


def judge_messages(trace, right, ranks, case):
    if ranks > 1 and any("all_reduce" in name for name, _ in trace["messages"][0]):
        raise NotRight(
            "right, but rank 0 used an all-reduce",
            "It sends twice the bytes, and adds zeros. Which collective puts shards in a row?",
        )


def flat(worker, tensors):
    n, rank = worker.world_size, worker.rank
    shapes = [tensor.shape for tensor in tensors]
    numbers = sum(tensor.numel() for tensor in tensors)
    size = -(-numbers // n)
    row = tensors[0].new_zeros(size * n)
    row[:numbers] = torch.cat([tensor.flatten() for tensor in tensors])
    shard = row[rank * size : (rank + 1) * size].clone()

    def gather(shard):
        whole = shard.new_empty(len(shard) * n)
        dist.all_gather(list(whole.split(len(shard))), shard)
        parts = whole[:numbers].split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    return shard, gather


SLICE = "row[rank * size : (rank + 1) * size].clone()"
ROUND_UP = "-(-numbers // n)"
GATHER = "    def gather(shard):"
HOLDS = (
    "gather holds tensors, so sharding saves nothing. Shapes are enough for it: which tensors do "
    "the lines of gather name?"
)
ENDS = "The gathered buffer has padding at its end. Which part of it do the tensors fill?"
shard_flat = OnRanks(
    right=flat,
    run=run_flat,
    free=("messages",),
    rule=judge_messages,
    patience=PATIENCE,
    about={"what is returned": "Return two things: the shard, a tensor, and gather, a function."},
    # 11 numbers on 4 ranks need one number of padding; 2 on 3 ranks leave one empty
    cases=tuple((ranks, {"shapes": shapes}) for ranks, shapes in (
        (2, [(2, 3), (4,)]), (4, [(3, 2), (), (4,)]), (3, [(2,)]), (2, [(3, 3)]),
        (1, [(2, 2), (1,)]),
    )),
    slips=(
        (Edit(GATHER, "    tensors[0].zero_()\n\n" + GATHER), "The tensors belong to the caller. "
         "Write into a buffer of your own."),
        (Edit(SLICE, SLICE + "[None]"), "A shard is flat: it has one dim."),
        (Edit("tensors[0].new_zeros(", "torch.zeros("), "The padding must have the tensors' dtype. "
         "Which dtype has torch.zeros(n)?"),
        (Edit(SLICE, "row.clone()"), "Every rank has all numbers. Which part is this rank's?"),
        (Edit(SLICE, "row[:numbers].tensor_split(n)[rank].clone()"),
         Edit(SLICE, "row[:numbers][rank * size : (rank + 1) * size].clone()"), "The shards have "
         "different lengths, and a gather needs equal ones. How many numbers must be added at the "
         "end, so that the ranks divide the length?"),
        (Edit(SLICE, "row[:size].clone()"), "Every rank has the same shard. On which number must "
         "the slice depend?"),
        (Edit(ROUND_UP, "numbers // n", "row[:numbers]", "row[:]", "for tensor in tensors])",
              "for tensor in tensors])[: size * n]"),
         "The last numbers are on no rank: the division left a tail. Round up, and pad."),
        (Edit(ROUND_UP, "numbers // n + 1"), Edit(ROUND_UP, "numbers"), "How much padding do you "
         "need at least? Where the ranks divide the length, none."),
        (Edit("new_zeros(", "new_ones("), "The padding is not zero. A norm over the shards adds "
         "its square, as if it belonged to the model. Which function makes zeros?"),
        (Edit(SLICE, "row[rank::n].clone()"),
         Edit("row[:numbers] =", "row[len(row) - numbers :] ="),
         Edit(SLICE, "row.view(n, size)[n - 1 - rank].clone()"), "All numbers are there, in "
         "another order. Rank 0 has the first ones, in a row."),
        (Edit(SLICE, SLICE.replace(".clone()", "")),
         Edit(SLICE, SLICE.replace("clone()", "detach()")), "A slice is a view: it keeps the whole "
         "buffer. Then sharding saves nothing. Which method makes a copy of the slice?"),
        (Edit("[shape.numel() for shape in shapes]", "[one.numel() for one in tensors]"),
         Edit("len(shard) * n)", "len(row))"),
         Edit(GATHER, "    own = shard.clone()\n\n    def gather(_):\n        shard = own.clone()"),
         HOLDS),
        (Edit("part.view(shape)", "part"), "The padding is no part of a tensor, and each tensor "
         "has its shape. Where does each begin?"),
        (Edit("part.view(shape)", "part.view(shape).float()"), "gather returns tensors of the "
         "dtype that the tensors had. Which line changes it?"),
        (Edit("return [part.view(shape) for part", "return whole or [part.view(shape) for part",
              "whole = shard", "whole = None or shard"), "gather returns a list with one tensor "
         "for each of the tensors."),
        (Edit(GATHER, "    own = shard\n\n    def gather(_):\n        shard = own.abs()"),
         "gather(shard) must read the shard that it is given, each time: the optimizer changes it "
         "between two calls."),
        (Edit("whole[:numbers].split", "whole.split"), ENDS),
    ),
    failures=(
        ("split_with_sizes", ENDS, None),
        ("shape '|invalid for input of size", "The gathered buffer has padding at its end, and "
         "each tensor its own shape.", None),
        (f"output tensor size must be equal|{DIFFER}", "An all-gather needs shards of one size on "
         "all ranks. Is the last one shorter?", None),
    ),
    last="Put all tensors into one row, zeros at its end, and cut it into N equal parts.",
)  # fmt: skip

# zero_1

STEPS = 3
MAKE = {
    "SGD": lambda tensors: torch.optim.SGD(tensors, lr=0.5, momentum=0.9),
    "Adam": lambda tensors: torch.optim.Adam(tensors, lr=0.1, eps=1e-3),
}
SIZES = (0.2, 4.0, 2.0)  # the norm of each step: below and above MAX_NORM
MAX_NORM = 1.0
SMALL = 64  # bytes in all-reduces: norms
COUNTS = 24  # bytes of state: counts of steps; a shard of these small cases has 16 to 64
ROUNDING = 1e-11  # float64, numbers of size 1, three steps: rounding is below 1e-14


def gradients(step: int, ranks: int, numbers: int, size: int) -> torch.Tensor:
    """(ranks, size): each rank's gradient; the padding is not zero."""
    made = torch.stack([normal(100 * step + rank, size) for rank in range(ranks)])
    made[:, :numbers] *= SIZES[step] / made[:, :numbers].mean(0).norm()
    made[:, numbers:] = 3.0
    return made


def one_process(optimizer: str, ranks: int, numbers: int, more: float) -> Iterator[torch.Tensor]:
    """Yield the parameters after each step; PyTorch clips by the norm and 1e-6 `more`.

    The first optimizer of a process makes PyTorch import for seconds; so this makes none.
    """
    size = -(-numbers // ranks) * ranks
    params, first, second = normal(7, size)[:numbers], 0.0, 0.0
    for k in range(STEPS):
        mean = gradients(k, ranks, numbers, size)[:, :numbers].mean(0)
        mean *= min(1.0, MAX_NORM / (float(mean.norm()) + more))
        if optimizer == "SGD":
            first = 0.9 * first + mean
            params = params - 0.5 * first
        else:
            first, second = 0.9 * first + 0.1 * mean, 0.999 * second + 0.001 * mean.square()
            root = (second / (1 - 0.999 ** (k + 1))).sqrt()
            params = params - 0.1 * first / (1 - 0.9 ** (k + 1)) / (root + 1e-3)
        yield params


def clipped_as_torch(trace, numbers, optimizer) -> dict:
    """Where a rank clips as PyTorch does, count its parameters as the exact ones."""
    ranks = len(trace["returned"])
    both = (one_process(optimizer, ranks, numbers, more) for more in (0.0, 1e-6))
    for k, (exact, as_torch) in enumerate(zip(*both, strict=True), 1):
        facet = f"parameters after step {k}"
        if found := trace.get(facet):
            trace[facet] = tuple(exact if same(one, as_torch, ROUNDING) else one for one in found)
    return {}


def run_steps(worker, solve, numbers, optimizer):
    torch.set_num_threads(1)
    n, rank = worker.world_size, worker.rank
    size = -(-numbers // n) * n
    params, made = normal(7, size), []

    def make_optimizer(tensors):
        made.append(MAKE[optimizer](tensors))
        return made[-1]

    step = solve(worker, params, numbers, make_optimizer, MAX_NORM)
    if not callable(step):
        return {"returned": short(plain(step))}
    trace, reduced = {"returned": "a step"}, 0
    for k in range(STEPS):
        norm, seen = observed(step, gradients(k, n, numbers, size)[rank].clone())
        trace[f"unwaited in step {k + 1}"] = seen["unwaited"]
        trace[f"parameters after step {k + 1}"] = params[:numbers].detach().clone()
        scalar = isinstance(norm, torch.Tensor) and norm.numel() == 1
        trace[f"norm of step {k + 1}"] = norm.item() if scalar else plain(norm)
        sums = [nbytes for name, nbytes in seen["messages"] if "all_reduce" in name]
        reduced = max(reduced, sum(sums))
    state = sum(bytes_of(list(one.state.values())) for one in made)
    return trace | {"optimizers": len(made), "state": state, "all-reduced": reduced}


NO_OPTIMIZER = "Call make_optimizer with a list of the tensors that this rank updates."
WHOLE_STATE = (
    "The optimizer's state is not sharded, so the rank saves nothing. Which numbers does this rank "
    "update, and which tensor must make_optimizer be given?"
)
ALL_REDUCED = (
    "An all-reduce gives each rank the whole sum, and sends twice the bytes. Which half of it "
    "gives each rank the sum of its own shard?"
)


def judge_costs(trace, right, ranks, case):
    for rank in range(ranks):
        found, due = trace["state"][rank], right["state"][rank]
        if not trace["optimizers"][rank]:
            raise NotRight(f"right, but rank {rank} made no optimizer", NO_OPTIMIZER)
        if found > due + COUNTS:
            words = f"right, but rank {rank}'s {case['optimizer']} holds {found} bytes of state; "
            raise NotRight(words + f"the state of a shard has {due} bytes", WHOLE_STATE)
        if ranks > 1 and trace["all-reduced"][rank] > SMALL:
            words = f"right, but rank {rank} used all-reduces of {trace['all-reduced'][rank]} bytes"
            raise NotRight(words + " in a step", ALL_REDUCED)


def stage_1(worker, params, numbers, make_optimizer, max_norm):
    n, rank = worker.world_size, worker.rank
    size = len(params) // n
    mine = slice(rank * size, (rank + 1) * size)
    shard = params[mine].clone()
    optimizer = make_optimizer([shard])
    real = min(max(numbers - rank * size, 0), size)  # of the shard; the rest is padding

    def step(gradients):
        own = torch.empty_like(shard)
        ring_reduce_scatter(own, gradients)
        own /= n
        total = own[:real].square().sum()
        dist.all_reduce(total)
        norm = total.sqrt()
        own *= min(1.0, max_norm / norm)
        shard.grad = own
        optimizer.step()
        dist.all_gather(list(params.split(size)), shard)
        return norm.item()

    return step


def without_optimizer(worker, params, numbers, make_optimizer, max_norm):
    """An optimizer of its own: correct, but not the one that was given."""
    return stage_1(worker, params, numbers, MAKE["Adam" if numbers == 6 else "SGD"], max_norm)


CLIP = "own *= min(1.0, max_norm / norm)"
BACK = "dist.all_gather(list(params.split(size)), shard)"
SCATTER = "ring_reduce_scatter(own, gradients)"
zero_1 = OnRanks(
    right=stage_1,
    run=run_steps,
    together=clipped_as_torch,
    close=1e-9,
    free=("optimizers", "state", "all-reduced"),
    rule=judge_costs,
    patience=PATIENCE,
    about={"returned": "Return the function that makes one step: step(gradients) -> norm."},
    # 5 numbers on 4 ranks: shards of 2, and the last rank has padding only
    cases=tuple((n, {"numbers": numbers, "optimizer": name}) for n, numbers, name in (
        (2, 7, "SGD"), (4, 5, "SGD"), (3, 6, "Adam"), (1, 4, "SGD")
    )),
    slips=(
        (Edit("own[:real].square()", "own.square()"),
         Edit(SCATTER, "dist.all_reduce(gradients); own.copy_(gradients[mine])",
              "own[:real].square()", "own.square()"), "The padding is counted in the norm, and it "
         "holds anything. Which numbers of this rank's shard belong to the model?"),
        (Edit(CLIP, CLIP.replace("/ norm", "/ own.norm()")), "Each rank has clipped by the norm of "
         "its own shard, padding too. All ranks need one norm: that of all real numbers."),
        (Edit(BACK, "params[mine] = shard"), "This rank's own shard is right, and the other shards "
         "are those of before the step. Which collective brings the updated shards to every rank?"),
        (Edit("optimizer.step()", BACK + "; optimizer.step()", "        " + BACK + "\n", ""),
         Edit(BACK, "pass"), "The parameters are what they were. Does the optimizer update a "
         "tensor of its own, and which line writes it into params?"),
        (Edit("own /= n", "own /= n * n"), Edit("shard.grad = own", "shard.grad = own / n"),
         Edit("return norm.item()", "return norm.item() / n"), "The mean is taken twice. Which of "
         "your lines divides by the number of ranks?"),
        (Edit("own /= n", "pass"), "The gradients are a sum over the ranks. One process takes "
         "their mean."),
        (Edit(SCATTER, "own.copy_(gradients[mine])", "own /= n", "pass"), "This rank used its own "
         "gradient alone. Where do the other ranks' gradients come in?"),
        (Edit("        dist.all_reduce(total)\n", ""),
         Edit(CLIP, CLIP.replace("/ norm", "/ (own[:real].norm() + 1e-30)")), "That is the norm of "
         "this rank's shard. All ranks need one norm: add up the squares over the ranks, then take "
         "the root."),
        (Edit("own[:real].square().sum()", "own[:real].norm()", "total.sqrt()", "total"), "Norms "
         "of shards do not add up. Their squares do. Where must the root be taken?"),
        (Edit(CLIP, "pass"), "The gradient is not clipped. By which factor must it be multiplied, "
         "if its norm is above max_norm?"),
        (Edit(CLIP, "own *= max_norm / norm"), "The gradient is scaled in each step. Which "
         "gradients must stay as they are?"),
        (Edit(CLIP, CLIP.replace("/ norm", "/ norm**2")), "The gradient is divided by the square "
         "of the norm. Where is the root?"),
        (Edit(CLIP, CLIP.replace("/ norm", "/ (n * norm)")),
         Edit("return norm.item()", "return n * norm.item()"), "That is the norm of the sum over "
         "the ranks. Of which gradient is the norm to be at most max_norm?"),
        (Edit(CLIP, "own.clamp_(-max_norm, max_norm)"), "Each number was clipped by itself, so the "
         "gradient has another direction. One factor must scale all of its numbers."),
        (Edit("optimizer.step()", "make_optimizer([shard]).step()"), "The optimizer has no memory "
         "of the steps before. How often is make_optimizer called?"),
        (Edit("shard.grad = own", "shard.grad = own if shard.grad is None else shard.grad + own"),
         "The gradient of the step before is still in the sum. What must happen to .grad between "
         "two steps?"),
        (Edit("return norm.item()", "return None"),
         Edit("return norm.item()", "return min(norm.item(), max_norm)"), "step returns the norm "
         "of the whole gradient before clipping, as a number."),
        (Edit("return norm.item()", "return norm.item() ** 2"), "That is the square of the norm."),
        (Edit("shard = params[mine].clone()", "whole = params.clone(); shard = whole[mine]",
              "[shard]", "[whole]", "shard.grad = own",
              "whole.grad = torch.zeros_like(whole); whole.grad[mine] = own"), WHOLE_STATE),
        (without_optimizer, NO_OPTIMIZER),
        (Edit(SCATTER, "dist.all_reduce(gradients); own.copy_(gradients[mine])"), ALL_REDUCED),
    ),
    failures=(
        ("a leaf Variable that requires grad", "Write into a tensor of autograd under "
         "torch.no_grad(), or use its .data.", None),
        ("can't optimize a non-leaf Tensor", "An optimizer takes leaf tensors. Which call makes a "
         "slice one: clone, detach?",
         Edit("params[mine].clone()", "params.requires_grad_()[mine]").of(stage_1)),
        (f"hang|no sign of life|{DIFFER}", "Do all ranks call the same collectives, also a rank "
         "whose shard is nothing but padding? Are all shards of one size?", None),
    ),
    last="Go through one step for two ranks on paper: reduce-scatter the gradients, take the mean, "
    "add up the squares, clip, update the shard, gather the shards.",
)  # fmt: skip
