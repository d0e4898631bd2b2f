"""Exercise of week 4: the cross-entropy of logits that are cut by vocabulary.

B  sequences        T  tokens        V  vocabulary        v  this rank's part of it
"""

import torch

from helpers.check.oracle import HANG_HINT, NotRight, examine, is_number
from helpers.check.verdict import Verdict
from helpers.check.week03.watch import Watch
from helpers.check.week04.cross_entropy_hints import hint_gradient, hint_loss
from helpers.check.week04.kinds import RIGHT, kind_of
from helpers.data.batch import IGNORED

# The parts of the vocabulary, whether some targets are ignored, whether logits are huge.
CASES = (
    ((6, 6), False, False),
    ((7, 2, 4), True, False),
    ((2, 5, 1, 6), True, True),
)
B, T = 2, 6
NUMBER = 8  # bytes, of float64
MOST = 5  # messages, and numbers for each token in all messages together; 3 are enough
HUGE = 10_000.0  # exp overflows in float64 from 710 on


def vocabulary_cross_entropy(fn) -> Verdict:
    """Check `fn(worker, logits, targets, start) -> loss, of_logits`: no logits are sent."""
    cases = [
        (len(sizes), {"sizes": sizes, "ignored": ignored, "huge": huge})
        for sizes, ignored, huge in CASES
    ]
    exercise = "vocabulary_cross_entropy"
    return examine(exercise, fn, cases, run_loss, judge_loss, hint_failure)


def inputs(sizes, ignored: bool, huge: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole logits (B, T, V) and the targets (B, T): some of each rank, some at its edges."""
    vocabulary = sum(sizes)
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(B, T, vocabulary, generator=generator, dtype=torch.float64)
    edges = torch.tensor(sizes).cumsum(0)
    targets = torch.randint(vocabulary, (B, T), generator=generator)
    targets[0, : len(sizes)] = edges - 1  # the last token of each part
    targets[1, : len(sizes) - 1] = edges[:-1]  # the first token of each part but the first part
    if ignored:
        targets[1, -2:] = IGNORED
        targets[0, -1] = IGNORED
    if huge:
        logits[0] += HUGE
        logits[1, :3] -= HUGE
        logits[:, 4, : sizes[0]] -= 2 * HUGE  # far below the other ranks'
    return logits, targets


def run_loss(worker, solve, sizes, ignored, huge):
    torch.set_num_threads(1)
    rank = worker.rank
    logits, targets = inputs(sizes, ignored, huge)
    start, own = sum(sizes[:rank]), sizes[rank]
    mine = logits[..., start : start + own].contiguous()
    given = mine.clone(), targets.clone()
    watch = Watch()
    with watch:
        answer = solve(worker, *given, start)
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return {"returned": type(answer).__name__}
    loss, gradient = answer
    if is_number(loss):
        loss = torch.tensor(loss, dtype=torch.float64)
    losses, gradients = candidates(logits, targets, sizes, rank)
    return {
        "loss": kind_of(loss, losses),
        "shown": loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None,
        "right": losses[RIGHT].item(),
        "gradient": kind_of(gradient, gradients),
        "unwaited": watch.unwaited(),
        "messages": [(e.name, e.nbytes) for e in watch.events if e.kind == "message"],
        "changed": not (given[0].equal(mine) and given[1].equal(targets)),
    }


def candidates(logits, targets, sizes, rank: int):
    """The right loss and gradient of a rank, and those of common mistakes: two dicts by kind."""
    n, counted = len(sizes), targets != IGNORED
    count = counted.sum()
    parts = logits.split(sizes, dim=-1)
    starts = [sum(sizes[:r]) for r in range(n)]
    rows = [targets - start for start in starts]
    here = [(r >= 0) & (r < size) for r, size in zip(rows, sizes, strict=True)]
    clamped = [r.clamp(0, size - 1) for r, size in zip(rows, sizes, strict=True)]

    def at(part, index):
        return part.gather(-1, index[..., None])[..., 0]

    chosen = [at(p, c) for p, c in zip(parts, clamped, strict=True)]  # (B, T) for each rank
    target = sum(c * h for c, h in zip(chosen, here, strict=True))
    local_sum = [p.logsumexp(-1) for p in parts]
    largest = [p.amax(-1) for p in parts]
    total = logits.logsumexp(-1)
    uneven = torch.stack([s - m for s, m in zip(local_sum, largest, strict=True)]).logsumexp(0)
    lowered = sum((c - m) * h for c, m, h in zip(chosen, largest, here, strict=True))
    unmasked = sum(chosen)
    unshifted = sum(
        at(p, targets.clamp(0, size - 1)) * ((targets >= 0) & (targets < size))
        for p, size in zip(parts, sizes, strict=True)
    )

    def summed(each):
        return (each * counted).sum()

    right = summed(total - target)
    own = summed((local_sum[rank] - chosen[rank]) * here[rank])
    losses = {
        RIGHT: right,
        "ignored places counted": (total - target).sum(),
        "the mean": right / count,
        "the mean over all places": right / targets.numel(),
        "not summed": (total - target) * counted,
        "local softmax, own targets": own,
        "local softmax, summed": sum(
            summed((s - c) * h) for s, c, h in zip(local_sum, chosen, here, strict=True)
        ),
        "local softmax": summed(local_sum[rank] - target),
        "own targets": summed((total - chosen[rank]) * here[rank]),
        "own target's logit": summed(total - chosen[rank] * here[rank]),
        "own target's logit, lowered": summed(
            total - logits.amax(-1) - (chosen[rank] - logits.amax(-1)) * here[rank]
        ),
        "each rank's maximum": summed(uneven - lowered),
        "each rank's maximum, put back": summed(uneven + largest[rank] - target),
        "every rank's row": summed(total - unmasked),
        "rows not shifted": summed(total - unshifted),
        "N times": n * right,
        "divided by N": right / n,
    }
    softmax, local = (logits.softmax(-1).split(sizes, -1)[rank], parts[rank].softmax(-1))

    def ones(index, where):
        return torch.zeros_like(local).scatter_add(-1, index[..., None], where[..., None].double())

    one, where = ones(clamped[rank], here[rank]), counted[..., None]
    everywhere = ones(clamped[rank], torch.ones_like(here[rank]))
    wrong_row = ones(targets.clamp(0, sizes[rank] - 1), (targets >= 0) & (targets < sizes[rank]))
    good = (softmax - one) * where
    gradients = {
        RIGHT: good,
        "ignored places": softmax - one,
        "local softmax": (local - one) * where,
        "local softmax, own targets": (local - one) * where * here[rank][..., None],
        "softmax alone": softmax * where,
        "softmax alone, ignored places too": softmax,
        "own targets": good * here[rank][..., None],
        "every rank's row": (softmax - everywhere) * where,
        "rows not shifted": (softmax - wrong_row) * where,
        "the mean": good / count,
        "the mean over all places": good / targets.numel(),
        "the sign": -good,
        "N times": n * good,
        "divided by N": good / n,
        "all logits": (logits.softmax(-1) - torch.nn.functional.one_hot(
            targets.clamp(0), logits.shape[-1])) * where,
    }  # fmt: skip
    return losses, gradients


def judge_loss(runs, sizes, ignored, huge):
    case = f"a vocabulary of {sum(sizes)} in parts {sizes}"
    case += f", {IGNORED} as some targets" * ignored + ", logits of up to ±20,000" * huge
    for rank, run in enumerate(runs):
        if "returned" in run:
            raise NotRight(
                f"{case}: rank {rank} returned {run['returned']}",
                "Return two tensors: the loss, and the gradient of this rank's logits.",
            )
    for rank, run in enumerate(runs):
        judge_size(case, rank, run, sizes)
    for rank, run in enumerate(runs):
        if run["unwaited"]:
            raise NotRight(
                f"{case}: rank {rank} returned before an all-reduce was over",
                "An all-reduce with async_op=True only starts. When may you read its result?",
            )
        if run["loss"] != RIGHT:
            found = run["loss"] if run["shown"] is None else f"{run['shown']:.6g}"
            raise NotRight(
                f"{case}: the loss of rank {rank} is {found}; one process has {run['right']:.6g}",
                hint_loss(run["loss"], run["shown"], bool(run["messages"])),
            )
    for rank, run in enumerate(runs):
        if run["gradient"] != RIGHT:
            raise NotRight(
                f"{case}: the loss is right, but the gradient of rank {rank}'s logits is not",
                hint_gradient(run["gradient"]),
            )
        if run["changed"]:
            raise NotRight(
                f"{case}: right, but rank {rank} wrote into the tensors that it was given",
                "Which line works in place? Another layer may still need the old numbers.",
            )


def judge_size(case: str, rank: int, run, sizes):
    """Refuse messages whose size grows with the vocabulary, and a message for each token."""
    sent, most = sum(nbytes for _, nbytes in run["messages"]), MOST * B * T * NUMBER
    if sent > most:
        listing = "\n".join(f"  {name} of {nbytes:,} bytes" for name, nbytes in run["messages"])
        raise NotRight(
            f"{case}, {B} x {T} tokens: rank {rank} sent {sent:,} bytes\n{listing}\n"
            f"  its own logits are {B * T * sizes[rank] * NUMBER:,} bytes, and one number for each "
            f"token is {B * T * NUMBER:,} bytes",
            "Your messages grow with the vocabulary. Write the loss of a token as a sum over the "
            "vocabulary: which numbers for each token can each rank compute alone, and then add?",
        )
    if len(run["messages"]) > MOST:
        raise NotRight(
            f"{case}: rank {rank} started {len(run['messages'])} messages",
            "Each message has a latency. Send all tokens' numbers together.",
        )


def hint_failure(finding: str) -> str:
    if "out of bounds" in finding or "IndexError" in finding:
        return (
            "A target is a token of the whole vocabulary, or -100. Which row of this rank's logits "
            "is it? And what if it is not here?"
        )
    if "no sign of life" in finding:
        return HANG_HINT
    if "must match the size" in finding or "SIGABRT" in finding or "same size" in finding:
        return "The parts of the vocabulary differ in size. Which of your messages depends on v?"
    return ""
