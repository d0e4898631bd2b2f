"""Exercises of week 3: several micro-batches and one synchronisation; gradients in buckets."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from helpers.check import hidden
from helpers.check.answers import plain, short
from helpers.check.exercise import Edit
from helpers.check.ranks import DIFFER, OnRanks
from helpers.check.watch import Watch
from helpers.data.batch import IGNORED, Batch, random_batch
from helpers.models.gpt import GPTConfig, build, loss_sum
from helpers.parallel.ddp.overlapped import DDP

# accumulate

CONFIG = GPTConfig(vocab=11, context=6, width=8, layers=1, heads=2)
SMALL = 256  # bytes: counts, not gradients


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
    trace, nbytes, synchronize = {}, sum(p.nbytes for p in model.parameters()), ddp.synchronize
    for step in (1, 2):
        before, watch = flat(model), Watch()
        ddp.synchronize = lambda: (watch.mark("synchronize"), synchronize())[1]  # noqa: B023
        with watch:
            solve(worker, ddp, optimizer, micro_batches(worker.rank, micros, step - 1))
        sent = [e for e in watch.events if e.kind == "message" and e.nbytes > SMALL]
        kinds = [e.kind for e in watch.events if e in sent or e.kind == "synchronize"]
        trace[f"the gradient of step {step}"] = before - flat(model)
        trace["bytes too many"] = max(0, sum(e.nbytes for e in sent) - nbytes)
    # the buckets are made in step 1, so that only step 2 can send during its backward
    return {**trace, "all bytes sent after the backward": kinds[:1] == ["synchronize"]}


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def accumulated(worker, ddp, optimizer, micro_batches):
    optimizer.zero_grad()
    ranks, last = worker.world_size, len(micro_batches) - 1
    own = sum(batch.counted() for batch in micro_batches)
    tokens = torch.tensor(own)
    dist.all_reduce(tokens)
    for number, batch in enumerate(micro_batches):
        with ddp.no_sync() if number < last else nullcontext():
            loss, _ = loss_sum(ddp(batch.tokens), batch.targets)
            (loss * ranks / tokens).backward()
    ddp.synchronize()
    optimizer.step()


SCALE = "loss * ranks / tokens"
QUIET = "ddp.no_sync() if number < last else nullcontext()"
AFTER = "optimizer.step()"
LATE = "The messages could be under way during the last backward. What delays them?"
accumulate = OnRanks(
    right=accumulated,
    run=run_accumulate,
    cases=tuple((ranks, {"micros": micros}) for ranks, micros in ((2, 3), (3, 2), (2, 1))),
    close=1e-12,
    patience=4,
    slips=(
        (Edit("    optimizer.zero_grad()", "    pass"), "A step begins with nothing in `.grad`. "
         "Which call clears it, and when?"),
        (Edit(SCALE, "loss"), "ddp has divided by ranks. How many tokens are there, over all "
         "ranks?"),
        (Edit(SCALE, "loss * ranks"), Edit(SCALE, "loss * ranks * ranks / tokens"), "Too large: by "
         "which number do you divide, and by which number does ddp divide?"),
        (Edit(SCALE, "loss / max(batch.counted(), 1) / len(micro_batches)"),
         Edit(SCALE, "loss / max(own, 1)"), "A mean of means. Should a token count more because "
         "its micro-batch, or its rank, has few tokens?"),
        (Edit(SCALE, "loss / max(batch.counted(), 1)"),
         Edit(SCALE, "loss * ranks / max(batch.counted(), 1)"),
         Edit(SCALE, "loss * ranks / max(own, 1)"), "Means were added up. Over how many tokens "
         "does the single process take its mean?"),
        (Edit(SCALE, SCALE + " / len(micro_batches)"), Edit("tensor(own)", "tensor([b.counted() "
              "for b in micro_batches])", SCALE, "loss * ranks / tokens[number] / "
              "len(micro_batches)"), "Divide by tokens, not by micro-batches."),
        (Edit(SCALE, "loss", AFTER, "for p in ddp.parameters():\n        p.grad /= max(own, 1)\n"
              "    optimizer.step()"), "Each rank divided by its own count. By which count does "
         "the single process divide?"),
        (Edit(QUIET, "ddp.no_sync()"), LATE),
        (Edit(QUIET, "ddp.no_sync()", "    ddp.sync", "            ddp.sync"), "The ranks have "
         "sent each other nothing. Where does synchronize() do nothing?"),
        (Edit("    ddp.synchronize()\n    optimizer.step()", "    optimizer.step()\n"
              "    ddp.synchronize()"), "The optimizer made its step before the gradients were "
         "back. What must come first?"),
        (Edit("    optimizer.step()", "    pass"), "The gradients are there. Which call makes the "
         "step?"),
        (Edit("        with ddp", "        optimizer.zero_grad()\n        with ddp"), "`.grad` "
         "held the gradients of earlier micro-batches. Which line has taken it away?"),
    ),
    about={
        "bytes too many": "Only the last micro-batch's backward needs to send: earlier gradients "
        "can stay on the rank. Which context of ddp does that?",
        "all bytes sent after the backward": LATE,
    },
    failures=(
        (r"no_sync\(\) after a backward that sends", "You cannot add to a gradient that is under "
         "way. Which backward of a step should send, and which call waits for its messages?", None),
        (r"a second gradient for", "Two backwards of one step wanted to send. How many backwards "
         "need to send?", Edit(QUIET, "nullcontext()")),
        (r"backward through the graph a second time", "Each micro-batch's loss has a graph of its "
         "own. Which one is run twice?", None),
    ),
    last="Write down the single process's loss as a sum over tokens, divided once. By which number "
    "must each micro-batch's sum be divided, if ddp will divide by the number of ranks?",
)  # fmt: skip


# reduce_in_buckets

# Ranks, bytes of a bucket, whether a backward came before the hooks. 1304 bytes in all.
BUCKETS = ((2, 400, False), (3, 500, True), (2, 1, False), (2, 10_000, False))


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


def loss_of(model, rank: int, step: int):
    generator = torch.Generator().manual_seed(hidden.seed(100 * step + rank))
    x = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    return model(x).square().sum()


def run_buckets(worker, solve, bucket_bytes, earlier):
    """Three steps; before the second `.grad` is None, before the third it is zero."""
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(hidden.seed(7))
        model = Net().double()
    if earlier:
        loss_of(model, worker.rank, -1).backward()
    names = {name: p for name, p in model.named_parameters() if p.requires_grad}
    watch = Watch()
    for name, parameter in names.items():
        parameter.register_post_accumulate_grad_hook(lambda _, n=name: watch.mark("gradient", n))
    finish = solve(worker, model, bucket_bytes)
    trace = {"what is returned": "a function" if callable(finish) else short(plain(finish))}
    for step in range(3 if callable(finish) else 0):
        for parameter in names.values() if step else ():
            parameter.grad = torch.zeros_like(parameter) if step == 2 else None
        watch = Watch()  # the hooks above find the new one
        with watch:
            loss_of(model, worker.rank, step).backward()
            watch.mark("backward over")
            finish()
        trace[f"unwaited in step {step + 1}"] = watch.unwaited()
        trace[f"`.grad` after step {step + 1}"] = {n: plain(p.grad) for n, p in names.items()}
        sizes = {name: p.nbytes for name, p in names.items()}
        for facet, value in weighed(watch.events, sizes, bucket_bytes).items():
            trace[facet] = trace.get(facet, 0) or value
    return trace


def weighed(events, sizes, bucket_bytes: int) -> dict:
    """What is wrong with the messages of a step: nothing in the reference."""
    total, over = sum(sizes.values()), [event.kind for event in events].index("backward over")
    messages = [(k, event.nbytes) for k, event in enumerate(events) if event.kind == "message"]
    early = [(k, nbytes) for k, nbytes in messages if k < over]
    kept = total - sum(nbytes for _, nbytes in early)
    last = max(k for k, event in enumerate(events) if event.kind == "gradient")
    due = sum(sizes[event.name] for event in events[:last] if event.kind == "gradient")
    waited = due >= 2 * bucket_bytes and not any(k < last for k, _ in early)
    full = kept >= bucket_bytes
    return {
        "bytes sent twice": max(0, sum(nbytes for _, nbytes in messages) - total),
        "buckets sent before full": sum(size < bucket_bytes for _, size in messages[:-1]),
        "waits during the backward": sum(event.kind == "wait" for event in events[:over]),
        "bytes that no backward sent": kept if full and not early else 0,
        "bytes of a full bucket, kept until finish()": kept if full and early else 0,
        "buckets sent after the last gradient alone": int(waited and not full),
    }


def bucketed(worker, model, bucket_bytes):
    waiting, under_way = [], []

    def send():
        flat = torch.cat([p.grad.flatten() for p in waiting]) / worker.world_size
        under_way.append((dist.all_reduce(flat, async_op=True), flat, list(waiting)))
        waiting.clear()

    def came(parameter):
        waiting.append(parameter)
        if sum(p.grad.nbytes for p in waiting) >= bucket_bytes:
            send()

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(came)

    def finish():
        if waiting:
            send()
        for work, flat, parameters in under_way:
            work.wait()
            parts = flat.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        under_way.clear()

    return finish


HOOK = "parameter.register_post_accumulate_grad_hook(came)"
reduce_in_buckets = OnRanks(
    right=bucketed,
    run=run_buckets,
    cases=tuple((n, {"bucket_bytes": size, "earlier": earlier}) for n, size, earlier in BUCKETS),
    close=1e-12,
    slips=(
        (Edit("work.wait()", "pass"), "The all-reduces were not waited for. They only start in the "
         "backward: when may you read a buffer?"),
        (Edit("work.wait()", "flat = flat.clone()\n            work.wait()"),
         Edit("parameter.grad.copy_(part.view_as(parameter))", "pass"), "Every gradient was sent "
         "and reduced, but `.grad` does not have the sums. Which tensor has them, and do you copy "
         "from it before or after the wait?"),
        (Edit("        if waiting:\n            send()\n        for", "        for"), "Some "
         "gradients were never sent. Which call sends the bucket that no gradient fills?"),
        (Edit("for parameter in model.parameters():", "for _, parameter in "
              "model.named_parameters(remove_duplicate=False):"), "A tied weight is one parameter "
         "under two names: how many hooks does it have?"),
        (Edit("if parameter.requires_grad:", "if True:"), "A frozen parameter gets no gradient, so "
         "it cannot have a hook."),
        (Edit(HOOK, "parameter.register_hook(lambda _, p=parameter: came(p))"), "The hook read a "
         "gradient too early: some hooks run before autograd writes `.grad`, some after."),
    ),
    about={
        "what is returned": "Return a function for the rest of the work; it is called after each "
        "backward.",
        "bytes sent twice": "More bytes than the gradients have: which gradient is sent twice?",
        "buckets sent before full": "Each message has a latency: why use buckets, and when is a "
        "bucket full? How many bytes does the next one begin with?",
        "waits during the backward": "The backward stood still while a message was under way. When "
        "is there time to wait?",
        "bytes that no backward sent": "No message is sent while the backward computes, so "
        "computing and sending add up. Which hook runs, during a backward, when a gradient is "
        "complete? Was no bucket ever full? Count bytes.",
        "bytes of a full bucket, kept until finish()": "A full bucket was not sent at once. Which "
        "condition delays it?",
        "buckets sent after the last gradient alone": "Each bucket waited for the very last "
        "gradient. When is the bucket itself complete?",
    },
    failures=(
        (r"'NoneType' object", "A `.grad` was None. Does this parameter train, and had autograd "
         "filled its `.grad` when your hook ran? Some hooks run before autograd writes `.grad`, "
         "some after.", None),
        (rf"hang|{DIFFER}|[Gg]loo", "All-reduces are matched by their order, not by their "
         "contents. Does every rank start the same all-reduces, in the same order?", None),
    ),
    last="Follow one gradient: into the bucket, over the network, and back to its own place.",
)  # fmt: skip
