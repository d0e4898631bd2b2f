"""Exercise of week 4: the cross-entropy of logits that are cut by vocabulary.

B  sequences        T  tokens        V  vocabulary        v  this rank's part of it
"""

import torch

from helpers.check import hidden
from helpers.check.oracle import HANG_HINT, NotRight, examine, is_number
from helpers.check.verdict import Verdict
from helpers.check.watch import Watch
from helpers.check.week04.cross_entropy_hints import hint_gradient, hint_loss
from helpers.check.week04.cross_entropy_values import Cut, gradients, losses
from helpers.check.week04.kinds import RIGHT, kind_of
from helpers.data.batch import IGNORED

# The parts of the vocabulary, whether some targets are ignored, the sign of huge logits.
CASES = (
    ((6, 6), False, 0),
    ((7, 2, 4), True, 0),
    ((2, 5, 1, 6), False, 1),
    ((5, 8), True, -1),
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


def inputs(sizes, ignored: bool, huge: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole logits (B, T, V) and the targets (B, T): some of each rank, some at its edges."""
    vocabulary = sum(sizes)
    generator = torch.Generator().manual_seed(hidden.seed(5))
    logits = torch.randn(B, T, vocabulary, generator=generator, dtype=torch.float64)
    edges = torch.tensor(sizes).cumsum(0)
    targets = torch.randint(vocabulary, (B, T), generator=generator)
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
    cut = Cut(logits, targets, sizes, rank)
    right = losses(cut)
    return {
        "loss": kind_of(loss, right),
        "shown": loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None,
        "right": right[RIGHT].item(),
        "gradient": kind_of(gradient, gradients(cut)),
        "unwaited": watch.unwaited(),
        "messages": [(e.name, e.nbytes) for e in watch.events if e.kind == "message"],
        "changed": not (given[0].equal(mine) and given[1].equal(targets)),
    }


def judge_loss(runs, sizes, ignored, huge):
    case = f"a vocabulary of {sum(sizes)} in parts {sizes}"
    case += (
        f", {IGNORED} as some targets" * ignored
        + f", logits of about {huge * HUGE:,.0f}" * bool(huge)
    )
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
    if "no sign of life" in finding or "SIGABRT" in finding:
        return HANG_HINT
    if "must match the size" in finding or "same size" in finding:
        return "The parts of the vocabulary differ in size. Which of your messages depends on v?"
    return ""
