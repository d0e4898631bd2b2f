"""Exercise of week 3: send gradients in buckets while the backward runs."""

import copy
import re

import torch
from torch import nn

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine
from helpers.check.verdict import Verdict
from helpers.check.watch import Watch

# Ranks, bytes of a bucket, whether a backward came before the hooks. 1304 bytes in all.
CASES = [(2, 400, False), (3, 500, True), (2, 1, False), (2, 10_000, False)]
STEPS = 3
HANG = (
    "All-reduces are matched by their order, not by their contents. Does every rank start the "
    "same all-reduces, in the same order?"
)


class Net(nn.Module):
    """A weight used twice under two names, a frozen layer, sizes that fill no bucket evenly."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 8)
        self.outer.weight = self.inner.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):  # (B, 6) -> (B, 3)
        hidden = torch.tanh(self.outer(torch.tanh(self.inner(torch.tanh(self.stem(x))))))
        return self.head(torch.tanh(self.frozen(hidden)))


def reduce_in_buckets(fn) -> Verdict:
    """Check `fn(worker, model, bucket_bytes) -> finish`: means in `.grad`, sent in the backward."""
    cases = [(n, {"bucket_bytes": size, "earlier": earlier}) for n, size, earlier in CASES]
    return examine("reduce_in_buckets", fn, cases, run_buckets, judge_buckets, hint_failure)


def loss_of(model, rank: int, step: int):
    generator = torch.Generator().manual_seed(hidden.seed(100 * step + rank))
    x = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    return model(x).square().sum()


def trained(model) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradients(model, rank: int, steps) -> dict[str, torch.Tensor]:
    """The gradients of one process for that rank's data, added over these steps."""
    for parameter in model.parameters():
        parameter.grad = None
    for step in steps:
        loss_of(model, rank, step).backward()
    return {name: p.grad.clone() for name, p in trained(model).items()}


def run_buckets(worker, solve, bucket_bytes, earlier):
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(hidden.seed(7))
        model = Net().double()
    twin = copy.deepcopy(model)
    if earlier:
        loss_of(model, worker.rank, -1).backward()
    watch, names = Watch(), trained(model)
    for name, parameter in names.items():
        parameter.register_post_accumulate_grad_hook(lambda _, n=name: watch.mark("gradient", n))
    finish = solve(worker, model, bucket_bytes)
    if not callable(finish):
        return {"finish": type(finish).__name__}
    reports, n = [], worker.world_size
    for step in range(STEPS):
        if step:  # in the last step zeros, before it None
            for parameter in names.values():
                if step == STEPS - 1 and parameter.grad is not None:
                    parameter.grad.zero_()
                else:
                    parameter.grad = None
        watch = Watch()  # the hooks above find the new one
        with watch:
            loss_of(model, worker.rank, step).backward()
            watch.mark("backward over")
            finish()
        seen = [-1, 0] if earlier and step == 0 else [step]
        locals_ = [gradients(twin, rank, seen) for rank in range(n)]
        reports.append(
            {
                "events": watch.events,
                "unwaited": watch.unwaited(),
                "kinds": {n: kind_of(p.grad, n, locals_, worker.rank) for n, p in names.items()},
                "sent": [contents(row, locals_[worker.rank], n) for row in watch.payloads],
                "nbytes": {n: p.nbytes for n, p in names.items()},
            }
        )
    return {"finish": "a function", "steps": reports}


def kind_of(found, name: str, locals_, rank: int) -> str:
    """Name the common right or wrong value that a parameter's `.grad` has."""
    n, own = len(locals_), locals_[rank][name]
    total = sum(each[name] for each in locals_)
    if found is None:
        return "no gradient"
    candidates = {
        "right": total / n,
        "the sum over the ranks": total,
        "the mean, divided by N again": total / n**2,
        "this rank's own gradient": own,
        "this rank's own gradient, divided by N": own / n,
        "zeros": torch.zeros_like(own),
    }
    for kind, value in candidates.items():
        if same(found.detach(), value):
            return kind
    return "something else"


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To rounding: float64 sums of a handful of numbers of size 1, in whatever order."""
    return a.shape == b.shape and torch.allclose(a.double(), b, rtol=0, atol=1e-12)


def contents(row: torch.Tensor, own: dict[str, torch.Tensor], n: int) -> list[str]:
    """Names of the gradients, complete, that lie in a message one after another; "?" for others."""
    names, at = [], 0
    while at < len(row):
        for name, gradient in own.items():
            part = row[at : at + gradient.numel()]
            if same(part, gradient.flatten()) or same(part, gradient.flatten() / n):
                names.append(name)
                at += gradient.numel()
                break
        else:
            at += 1
            if names[-1:] != ["?"]:
                names.append("?")
    return names


def judge_buckets(runs, bucket_bytes, earlier):
    for rank, run in enumerate(runs):
        if run["finish"] != "a function":
            raise NotRight(
                f"rank {rank} returned {run['finish']}",
                "Return a function for the rest of the work; it is called after each backward.",
            )
    for step in range(STEPS):
        for rank, run in enumerate(runs):
            report = run["steps"][step]
            where = f"buckets of {bucket_bytes} bytes, step {step + 1}, rank {rank}"
            if any(kind != "right" for kind in report["kinds"].values()):
                rows = [f"  {name}: {kind}" for name, kind in report["kinds"].items()]
                rows += [f"  message {k + 1}: {', '.join(names)}"
                         for k, names in enumerate(report["sent"])]  # fmt: skip
                finding = f"{where}: `.grad` after finish()\n" + "\n".join(rows)
                raise NotRight(finding, hint_numbers(runs, step, rank, earlier, bucket_bytes))
            if report["unwaited"]:
                raise NotRight(
                    f"{where}: finish() returned before {report['unwaited']} of the all-reduces "
                    "had been waited for",
                    "An all-reduce with async_op=True only starts. When may you read its buffer?",
                )
    for step in range(STEPS):
        for rank, run in enumerate(runs):
            judge_messages(run["steps"][step], bucket_bytes, step, rank)


def hint_numbers(runs, step, rank, earlier, bucket_bytes) -> str:
    report = runs[rank]["steps"][step]
    kinds, sent, nbytes = report["kinds"], report["sent"], report["nbytes"]
    wrong = {name: kind for name, kind in kinds.items() if kind != "right"}
    names = [name for message in sent for name in message]
    twice = sorted({name for name in names if name != "?" and names.count(name) > 1})
    missing = [name for name in nbytes if name not in names]
    if step:
        return (
            f"Step{'s 1 to' * (step > 1)} {step} {'are' if step > 1 else 'is'} right, this step "
            "is not. What is left over from the step before when a new step begins?"
        )
    orders = [run["steps"][step]["sent"] for run in runs]
    if any(sorted(map(sorted, o)) == sorted(map(sorted, orders[0])) and o != orders[0]
           for o in orders):  # fmt: skip
        return HANG
    if twice:
        return (
            f"{twice[0]} was sent more than once in one step. A tied weight is one parameter "
            "under two names: how many hooks does it have?"
        )
    found = set(wrong.values())
    if found == {"the sum over the ranks"}:
        return "All sums are there. Which value does the optimizer need instead of a sum?"
    if found == {"the mean, divided by N again"}:
        return "Divided twice: you divide before the message, and in which other place?"
    if not sent:
        return "No all-reduce was started, in the backward or in finish()."
    if "?" in names:
        more = (
            " Here a backward ran before the hooks were set, and `.grad` held its gradient."
            if earlier
            else ""
        )
        return (
            "The numbers that were sent are not those of `.grad` after the backward: the hook read "
            "a gradient too early, or another tensor. When does the hook run, and which tensor "
            f"does it read?{more}"
        )
    if missing:
        left = sum(nbytes[name] for name in missing)
        if left < bucket_bytes:
            return (
                f"{', '.join(missing)}: {left} bytes, never sent. Which call sends the bucket "
                "that no gradient fills?"
            )
        return f"{', '.join(missing)}: never sent, and that is {left} bytes."
    if report["unwaited"]:
        return (
            f"{report['unwaited']} of the all-reduces were not waited for. They only start in the "
            "backward: when may you read a buffer?"
        )
    if found <= {"this rank's own gradient", "this rank's own gradient, divided by N"}:
        return (
            "Every gradient was sent and reduced, but `.grad` does not have the sums. Which tensor "
            "has them, and do you copy from it before or after the wait?"
        )
    return "Follow one gradient: into the bucket, over the network, and back to its own place."


def judge_messages(report, bucket_bytes, step, rank):
    events, total = report["events"], sum(report["nbytes"].values())
    over = [event.kind for event in events].index("backward over")
    messages = [(k, event) for k, event in enumerate(events) if event.kind == "message"]
    sent = sum(event.nbytes for _, event in messages)
    early = [(k, event) for k, event in messages if k < over]
    finding = (
        f"right, but with {total} bytes of gradients and buckets of {bucket_bytes} bytes, in step "
        f"{step + 1} rank {rank}\n  sent {sent} bytes in {len(messages)} messages, {len(early)} of "
        f"them during the backward"
    )
    most = -(-total // bucket_bytes) + 1
    if sent > total:
        raise NotRight(finding, "More bytes than the gradients have: which gradient is sent twice?")
    if len(messages) > most:
        raise NotRight(
            finding,
            f"At most {most} messages are needed. Each message has a latency: why use buckets?",
        )
    if any(event.kind == "wait" for event in events[:over]):
        raise NotRight(
            f"{finding}, which waited for one of them",
            "The backward stood still while a message was under way. When is there time to wait?",
        )
    unsent = total - sum(event.nbytes for _, event in early)
    if unsent < bucket_bytes:
        last = max(k for k, event in enumerate(events) if event.kind == "gradient")
        due = 0
        for event in events[:last]:
            if event.kind == "gradient":
                due += report["nbytes"][event.name]
        if due < 2 * bucket_bytes or any(k < last for k, _ in early):
            return
        raise NotRight(
            f"{finding}, after the last gradient",
            "Each bucket waited for the very last gradient. When is the bucket itself complete?",
        )
    if not early:
        raise NotRight(
            finding,
            "No message is sent while the backward computes, so computing and sending add up. "
            "Which hook runs, during a backward, when a gradient is complete?"
            + (" Was no bucket ever full? Count bytes." if len(messages) == 1 else ""),
        )
    raise NotRight(
        f"{finding};\n  {unsent} bytes were still on the rank when it ended",
        "A full bucket was not sent at once. Which condition delays it?",
    )


def hint_failure(finding: str) -> str:
    if "'NoneType' object" in finding:
        return (
            "A `.grad` was None. Does this parameter train, and had autograd filled its `.grad` "
            "when your hook ran? Some hooks run before autograd writes `.grad`, some after."
        )
    if re.search(r"hook on a tensor that doesn.t require grad", finding):
        return "A frozen parameter gets no gradient, so it cannot have a hook."
    if "hang" in finding or "SIGABRT" in finding or "gloo" in finding.lower():
        return HANG
    return ""
