"""Time a training step on two ranks: our data parallel and PyTorch's, in turn."""

from functools import partial
from types import SimpleNamespace

import torch
from torch.nn.parallel import DistributedDataParallel

from helpers.comm.transport import GroupTransport, SharedTransport
from helpers.models.gpt import build, loss_sum
from helpers.parallel.ddp.after_backward import BucketedDDP, NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from tests.bench.compare import duration
from tests.bench.report import Report, goal_of, mib, share_of
from tests.bench.steps import NOTES, RANKS, measured, row

NAME = "data_parallel"
PRESET = "10M"
TOKENS = {"computation dominates": 128, "an eighth of the tokens": 16}  # per rank and step
BUCKET_MB = 25  # set explicitly, so that the first bucket is not smaller
PEER, OURS, SHARED = "torch DDP", "DDP", "DDP, shared memory"
ROUNDS = 30

# (case, contender) -> the maximum of our time over PyTorch's time
GOALS = {
    ("computation dominates", OURS): 1.0,
    ("computation dominates", SHARED): 0.92,
    ("an eighth of the tokens", SHARED): 0.75,
}
WRAPS = {
    PEER: partial(DistributedDataParallel, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True),
    OURS: partial(DDP, bucket_cap_mb=BUCKET_MB),
    SHARED: lambda model: DDP(model, SharedTransport(), bucket_cap_mb=BUCKET_MB),
    "naive": lambda model: NaiveDDP(model, GroupTransport()),
    "bucketed": partial(BucketedDDP, bucket_cap_mb=BUCKET_MB),
}


def measure(quick: bool = False) -> Report:
    rows = []
    contenders = {name: partial(plain_loop, wrap=wrap) for name, wrap in WRAPS.items()}
    for case, tokens in TOKENS.items():
        print(f"data_parallel: {case}", flush=True)
        rounds = 3 if quick else ROUNDS * 128 // (tokens + 64)
        times, costs = measured(contenders, rounds, preset=PRESET, axis="dp", tokens=tokens)
        for name in contenders:
            own = row(name, PEER, GOALS.get((case, name)), times, costs[name])
            rows.append({"case": case, "tokens": tokens, **own})
    return report(rows)


def plain_loop(config, seed, mesh, wrap):
    """A training step around a wrapped model, as a script writes it."""
    model = build(config, seed=seed)
    replica = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    # PyTorch's DDP has no `synchronize`: its backward waits.
    synchronize = getattr(replica, "synchronize", lambda: None)

    def step(batch):
        optimizer.zero_grad()
        loss, count = loss_sum(replica(batch.tokens), batch.targets)
        (loss / count).backward()
        synchronize()
        optimizer.step()

    return SimpleNamespace(step=step, model=model, optimizer=optimizer)


def report(rows) -> Report:
    heading = ["step", "", "median", "over torch DDP", "goal", "states", "peak", "sent per step"]
    table = [heading]
    for r in rows:
        table.append(
            [
                r["case"],
                r["contender"],
                duration(r["median"]),
                "" if r["contender"] == PEER else share_of(r),
                goal_of(r),
                *(mib(r[key]) for key in ("model_states", "peak", "wire")),
            ]
        )
    notes = (
        f"GPT of {PRESET} parameters, float32, {RANKS} ranks, one thread each, 128 or 16 tokens "
        f"per rank, fused AdamW. Buckets of {BUCKET_MB} MiB; gradients are views into them. "
        f"{NOTES}States: a rank's parameters, gradients and optimizer state. With shared memory, "
        "no bytes are sent."
    )
    return Report(NAME, table, notes, rows)
