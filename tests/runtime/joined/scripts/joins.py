"""A script that calls `launch`, for python and for every launcher: joins.py CASE FOLDER.

Each process leaves what it saw in FOLDER, as JSON.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from helpers import Cluster, WorkerError, launch


def train(worker, steps, net):
    """A twin-able training: each rank its own data, gradients averaged."""
    torch.set_num_threads(1)
    assert os.environ["LOCAL_RANK"] == str(worker.local_rank)  # other libraries read it
    torch.manual_seed(worker.rank)
    x = torch.randn(16, 6, dtype=torch.float64)
    y = x.sin().sum(1, keepdim=True)
    losses = []
    for step in worker.track(range(steps), label="steps"):
        loss = ((net(x) - y) ** 2).mean()
        net.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.data -= 0.05 * p.grad / worker.world_size
        losses.append(loss.item())
        worker.log(step=step, loss=loss)
    print(f"trained on rank {worker.rank}", flush=True)
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    return {"losses": losses, "weights": weights, "local_rank": worker.local_rank}


def remember(worker, what):
    worker.state.seen = [*getattr(worker.state, "seen", []), what]
    return worker.state.seen


def inside(worker, script, folder):
    """At one time: a launch in rank 1, and one in a program that rank 0 starts."""
    if worker.rank:
        return list(launch(lambda w, x: [w.rank, w.world_size, x], workers=3, x="inner"))
    subprocess.run([sys.executable, script, "child", folder], check=True, timeout=120)
    return json.loads(Path(folder, "child").read_text())


def case_train(folder):
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    ).double()
    first = launch(train, workers=3 if "MORE" in os.environ else 2, steps=6, net=net)
    again = launch(train, workers=2, steps=6, net=net)  # `net` must be as it was
    with Cluster(workers=2) as cluster:
        cluster.run(remember, what="a")
        seen = cluster.run(remember, what="b")
    fresh = launch(remember, workers=2, what="c")
    losses, weights = first.column("losses"), [w.tolist() for w in first.column("weights")]
    assert again.column("losses") == losses
    return {
        "losses": losses,
        "weights": weights,
        "rows": [[r["rank"], r["step"], r["loss"]] for r in first.frame().to_dict("records")],
        "state": [list(seen), list(fresh)],
        "local_ranks": first.column("local_rank"),
        "device": [first.device, first.backend],
    }


def case_inside(folder):
    return list(launch(inside, workers=2, script=__file__, folder=folder))


def case_child(folder):
    ranks = launch(lambda worker: [worker.rank, worker.world_size], workers=2)
    Path(folder, "child").write_text(json.dumps(list(ranks)))


def fails_on_1(worker):
    dist.barrier()
    if worker.rank == 1:
        raise ValueError("the loss is not a number")
    dist.all_reduce(torch.ones(1))  # rank 1 never comes


def case_fail(folder):
    try:
        launch(fails_on_1)
    except WorkerError as error:
        attributes = {"rank": error.rank, "kind": error.kind, "traceback": error.traceback}
        write(folder, {**attributes, "when": time.time()})
        raise


def dies_on_1(worker):
    dist.barrier()
    if worker.rank == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()


def case_die(folder):
    launch(dies_on_1)


def busy(worker, folder):
    """Never ends by itself, and does not notice others: no collective after the first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun may notice first: this rank says why
    dist.barrier()
    Path(folder, f"busy{worker.rank}").write_text(str(os.getpid()))
    while True:
        time.sleep(0.1)


def case_busy(folder):
    launch(busy, folder=folder, timeout=4.0)


def write(folder, value):
    rank = os.environ.get("SLURM_PROCID") or os.environ.get("PMI_RANK") or os.environ.get("RANK", 0)
    Path(folder, f"{rank}.json").write_text(json.dumps(value))


if __name__ == "__main__":
    case, folder = sys.argv[1:]
    if (answer := globals()[f"case_{case}"](folder)) is not None:
        write(folder, answer)
