"""Exercise of week 3: several micro-batches, one synchronisation, the global mean."""

import copy

import torch

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine
from helpers.check.verdict import Verdict
from helpers.check.watch import Watch
from helpers.data.batch import IGNORED, Batch, random_batch
from helpers.models.gpt import GPT, GPTConfig, build, loss_sum
from helpers.parallel.ddp.overlapped import DDP

CASES = [(2, 3), (3, 2), (2, 1)]  # ranks, micro-batches on each
CONFIG = GPTConfig(vocab=11, context=6, width=8, layers=1, heads=2)
STEPS = 2
SMALL = 256  # bytes: counts, not gradients


def accumulate(fn) -> Verdict:
    """Check `fn(worker, ddp, optimizer, micro_batches)`: one process's step, sent once."""
    cases = [(ranks, {"micros": micros}) for ranks, micros in CASES]
    return examine("accumulate", fn, cases, run_accumulate, judge_accumulate, hint_failure, 4)


def micro_batches(rank: int, micros: int, step: int) -> list[Batch]:
    """Of unequal counts: 1 to 3 sequences, every third target ignored; rank 0's second has none."""
    made = []
    for k in range(micros):
        seed = hidden.seed(1000 * step + 10 * rank + k)
        batch = random_batch(seed, 1 + (rank + k) % 3, 6, 11, ignored=0.3)
        if (rank, k) == (0, 1):
            batch = Batch(tokens=batch.tokens, targets=torch.full_like(batch.targets, IGNORED))
        made.append(batch)
    return made


def run_accumulate(worker, solve, micros):
    torch.set_num_threads(1)
    model = build(CONFIG, seed=hidden.seed(3), dtype=torch.float64)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # so that a step is a gradient
    reports, leftover = [], None
    for step in range(STEPS):
        twin = copy.deepcopy(model)
        every = [micro_batches(rank, micros, step) for rank in range(worker.world_size)]
        before, watch = flat(model), Watch()
        synchronize = ddp.synchronize
        ddp.synchronize = lambda: (watch.mark("synchronize"), synchronize())[1]  # noqa: B023
        hook = optimizer.register_step_pre_hook(lambda *_: watch.mark("step"))  # noqa: B023
        with watch:
            solve(worker, ddp, optimizer, list(every[worker.rank]))
        ddp.synchronize = synchronize
        hook.remove()
        sums = [[gradient(twin, batch) for batch in row] for row in every]
        counts = [[batch.counted() for batch in row] for row in every]
        update = before - flat(model)
        kind = kind_of(update, sums, counts, worker.rank, leftover)
        leftover = update
        reports.append(
            {
                "kind": kind,
                "events": [e for e in watch.events if e.kind != "message" or e.nbytes > SMALL],
                "nbytes": sum(p.nbytes for p in model.parameters()),
                "counts": counts[worker.rank],
            }
        )
    return reports


def flat(model: GPT) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def gradient(model: GPT, batch: Batch) -> torch.Tensor:
    """Of the summed loss, in one process."""
    loss, _ = loss_sum(model(batch.tokens), batch.targets)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def kind_of(update, sums, counts, rank: int, leftover) -> str:
    """Name the common gradient that was subtracted. A count of no tokens is taken as 1."""
    n, micros = len(sums), len(sums[0])
    ones = [[max(c, 1) for c in row] for row in counts]
    tokens = sum(map(sum, counts))
    total = sum(sum(row) for row in sums)
    means = [[g / c for g, c in zip(*pair, strict=True)] for pair in zip(sums, ones, strict=True)]
    of_means = sum(sum(row) for row in means)
    of_ranks = sum(sum(row) / max(sum(c), 1) for row, c in zip(sums, counts, strict=True))
    own, own_tokens = sum(sums[rank]), max(sum(counts[rank]), 1)
    last = sum(row[-1] for row in sums)
    last_tokens = max(sum(row[-1] for row in counts), 1)
    right = total / tokens
    candidates = {
        "right": right,
        "nothing": torch.zeros_like(right),
        "times N": right * n,
        "divided by N": right / n,
        "the sum": total,
        "the sum, divided by N": total / n,
        "mean of means": of_means / (n * micros),
        "means not divided": of_means / n,
        "sum of means": of_means,
        "mean of the ranks' means": of_ranks / n,
        "sum of the ranks' means": of_ranks,
        "divided by the micro-batches": right / micros,
        "divided by rows": total / n / micros,
        "divided by my tokens times N": total / (own_tokens * n),
        "own": own / own_tokens,
        "own over all": own / tokens,
        "own over all times N": own * n / tokens,
        "last": last / tokens,
        "last over its own": last / last_tokens,
        "last rank means": sum(row[-1] for row in means) / n,
    }
    if leftover is not None:
        candidates["leftover"] = right + leftover
    if not torch.isfinite(update).all():
        return "not a number"
    for kind, value in candidates.items():
        if same(update, value):
            return kind
    ratio = (update @ right / (right @ right)).item()
    if same(update, ratio * right):
        digits = f"{ratio:.6g}"
        return f"{f'{ratio:.13g}' if digits == '1' else digits} times the right one"
    return "something else"


def same(update: torch.Tensor, value: torch.Tensor) -> bool:
    """Some twenty float64 numbers are added: of size 1 or less, rounding is below 1e-14."""
    return torch.allclose(update, value, rtol=0, atol=1e-12 * max(1.0, value.abs().max().item()))


WORDS = {
    "nothing": "none: the parameters are what they were",
    "times N": "the right one, times the number of ranks",
    "divided by N": "the right one, divided by the number of ranks",
    "the sum": "the sum over all tokens, not the mean",
    "the sum, divided by N": "the sum over all tokens, divided by the number of ranks",
    "mean of means": "the mean of the micro-batches' means",
    "means not divided": "a sum of the micro-batches' means",
    "sum of means": "a sum of the micro-batches' means, over all ranks",
    "mean of the ranks' means": "the mean of the ranks' means",
    "sum of the ranks' means": "the sum of the ranks' means",
    "divided by the micro-batches": "the right one, divided by the number of micro-batches",
    "divided by my tokens times N": "the sum over all, divided by this rank's own tokens",
    "own": "of this rank's tokens alone",
    "own over all": "of this rank's tokens alone",
    "own over all times N": "of this rank's tokens alone",
    "last": "of the last micro-batch alone",
    "last over its own": "of the last micro-batch alone",
    "last rank means": "of the last micro-batch alone",
    "leftover": "the right one, plus that of the step before",
    "not a number": "not a number",
}


def judge_accumulate(runs, micros):
    n = len(runs)
    for step in range(STEPS):
        for rank, run in enumerate(runs):
            report = run[step]
            if report["kind"] == "right":
                continue
            finding = (
                f"{micros} micro-batch{'es' * (micros > 1)} a rank, step {step + 1}, rank {rank}, "
                f"counted tokens {report['counts']}\n"
                f"  the gradient of the step: {WORDS.get(report['kind'], report['kind'])}"
            )
            raise NotRight(finding, hint_gradient(report["kind"], report))
        for rank, run in enumerate(runs):
            judge_messages(run[step], micros, step, rank, n)


def hint_gradient(kind: str, report) -> str:
    sent = any(event.kind == "message" for event in report["events"])
    marks = [event.kind for event in report["events"]]
    if kind == "not a number":
        return "A micro-batch without counted tokens has no mean: 0/0. Do you need its mean?"
    if kind == "nothing":
        return "The gradients are there. Which call makes the step?"
    if "step" in marks and "synchronize" in marks[marks.index("step") :]:
        return "The optimizer made its step before the gradients were back. What must come first?"
    if kind.startswith("own") or not sent:
        if "synchronize" in marks:
            return "The ranks have sent each other nothing. Where does synchronize() do nothing?"
        return "The ranks have sent each other nothing. Which call comes after the last backward?"
    if kind in ("mean of means", "mean of the ranks' means"):
        return (
            "A mean of means. Should a token count more because its micro-batch, or its rank, has "
            "few tokens?"
        )
    if kind in ("means not divided", "sum of means", "sum of the ranks' means"):
        return "Means were added up. Over how many tokens does the single process take its mean?"
    if kind in ("times N", "the sum"):
        return "Too large: by which number do you divide, and by which number does ddp divide?"
    if kind in ("divided by N", "the sum, divided by N"):
        if kind == "divided by N":
            return "Too small, by the number of ranks. ddp takes a mean; which sum do you need?"
        return "ddp has divided by ranks. How many tokens are there, over all ranks?"
    if kind == "divided by the micro-batches":
        return "Divide by tokens, not by micro-batches."
    if kind == "divided by my tokens times N":
        return "Each rank divided by its own count. By which count does the single process divide?"
    if kind.startswith("last"):
        return "`.grad` held the gradients of earlier micro-batches. Which line has taken it away?"
    if kind == "leftover":
        return "A step begins with nothing in `.grad`. Which call clears it, and when?"
    return (
        "Write down the single process's loss as a sum over tokens, divided once. By which number "
        "must each micro-batch's sum be divided, if ddp will divide by the number of ranks?"
    )


def judge_messages(report, micros, step, rank, n):
    events = report["events"]
    sent = sum(event.nbytes for event in events if event.kind == "message" and
               event.name == "all_reduce")  # fmt: skip
    if sent > report["nbytes"]:
        raise NotRight(
            f"the right step, but in step {step + 1} rank {rank} sent {sent} bytes, "
            f"{sent / report['nbytes']:.3g} times the gradients' {report['nbytes']}",
            "Only the last micro-batch's backward needs to send: earlier gradients can stay on the "
            "rank. Which context of ddp does that?",
        )
    if step == 0:
        return  # the buckets are made after the first backward
    kinds = [event.kind for event in events]
    if "message" in kinds and "synchronize" in kinds[: kinds.index("message")]:
        raise NotRight(
            f"the right step, but in step {step + 1} rank {rank} sent nothing before synchronize()",
            "The messages could be under way during the last backward. What delays them?",
        )


def hint_failure(finding: str) -> str:
    if "no_sync() after a backward that sends" in finding:
        return (
            "You cannot add to a gradient that is under way. Which backward of a step should send?"
        )
    if "a second gradient for" in finding:
        return "Two backwards of one step wanted to send. How many backwards need to send?"
    if "backward through the graph a second time" in finding:
        return "Each micro-batch's loss has a graph of its own. Which one is run twice?"
    if "hang" in finding or "SIGABRT" in finding:
        return "Does every rank start the same collectives, in the same order?"
    return ""
