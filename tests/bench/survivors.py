"""Kill one of three ranks that train, and time how soon the two others have done their next step.

Beside `survive` runs torchft, where it is installed. It is not part of the course's environment:

    pip install --target build/torchft torchft-nightly
    PYTHONPATH=build/torchft python -m tests.bench survivors
"""

import importlib.metadata
import importlib.util
import itertools
import os
import signal
import time
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F

from helpers.comm.mesh import Layout
from helpers.data.batch import copying_batch, part
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.resilience.agent import Agent
from helpers.resilience.crew import Crew
from helpers.resilience.survive import survive
from tests.bench.report import Report

NAME = "survivors"
TINY = GPTConfig(vocab=16, context=8, width=8, layers=2, heads=2)
RANKS, SEQUENCES, STEPS, KILLED_AFTER = 3, 6, 60, 20  # steps of each rank
SILENCE = 4.0  # seconds without a sign of life, for both


def ours(store: dist.Store, name: int, began):
    torch.set_num_threads(1)

    def make(size):
        return Recipe(layout=Layout(dp=size), owner=Replicated)(TINY, 0, dtype=torch.float64)

    def batch(k):
        began(k)
        return copying_batch(k, SEQUENCES, TINY.context, TINY.vocab)

    survive(Crew(store, name, RANKS, silence=SILENCE), make, batch, STEPS)


def theirs(store: dist.Store, name: int, began):
    """Each rank is a replica of torchft; by its rules a step that fails is not committed."""
    from torchft import Manager, ProcessGroupGloo

    torch.set_num_threads(1)
    single = Single(TINY, 0, dtype=torch.float64)
    model, optimizer = single.model, single.optimizer
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        state_dict=lambda: [model.state_dict(), optimizer.state_dict()],
        load_state_dict=lambda state: [
            one.load_state_dict(saved) for one, saved in zip((model, optimizer), state, strict=True)
        ],
        min_replica_size=RANKS - 1,
        use_async_quorum=False,  # its ranks divide the batch
        init_sync=False,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=own.port,
        hostname="127.0.0.1",
        lighthouse_addr=store.get("lighthouse").decode(),
        replica_id=str(name),
    )
    while manager.current_step() < STEPS:
        began(k := manager.current_step())
        manager.start_quorum()
        batch = copying_batch(k, SEQUENCES, TINY.context, TINY.vocab)
        shard = part(SEQUENCES, manager.participating_rank() or 0, manager.num_participants())
        optimizer.zero_grad()
        logits = model(batch.tokens[shard])
        F.cross_entropy(logits.flatten(0, 1), batch.targets[shard].flatten()).backward()
        for work in [manager.allreduce(p.grad) for p in model.parameters()]:
            work.wait()
        if manager.should_commit():
            optimizer.step()
    manager.shutdown(wait=False)


def round_of(body) -> dict:
    """Train; kill a rank in the middle. Return seconds, and how many steps were computed again."""

    def rank(store, name):
        found = []

        def began(k):
            found.append((time.time(), k))
            store.add(f"steps/{name}", 1)

        body(store, name, began)
        return found

    agent, lighthouse = Agent(rank), None
    names = [agent.start() for _ in range(RANKS)]
    if body is theirs:  # after the forks, which its threads would not survive
        from torchft.coordination import LighthouseServer

        waits = {"join_timeout_ms": 100, "quorum_tick_ms": 10}
        waits["heartbeat_timeout_ms"] = int(1000 * SILENCE)
        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=RANKS - 1, **waits)
        port = lighthouse.address().rsplit(":", 1)[1]
        agent.store.set("lighthouse", f"http://127.0.0.1:{port}")
    while any(agent.store.add(f"steps/{name}", 0) < KILLED_AFTER for name in names):
        time.sleep(0.005)
    killed = time.time()
    os.kill(agent.running[names[1]], signal.SIGKILL)
    while agent.look():
        time.sleep(0.01)
    agent.close()
    if lighthouse:
        lighthouse.shutdown()
    times = agent.results()[0]
    again = len(times) - len({k for _, k in times})
    _, done = [at for at, _ in times if at > killed][:2]  # the next step ends where another begins
    usual = [later - at for (at, _), (later, _) in itertools.pairwise(times)]
    return {"recovery": done - killed, "step": median(usual), "again": again}


def measure(quick: bool = False) -> Report:
    bodies = {"survive": ours}
    if importlib.util.find_spec("torchft"):
        bodies[f"torchft {importlib.metadata.version('torchft-nightly')}"] = theirs
    rows = [
        {"system": name, "round": number, **round_of(body)}
        for number in range(1 if quick else 7)
        for name, body in bodies.items()
    ]
    return report(rows)


def report(rows) -> Report:
    table = [["", "the next step is done after", "a step", "steps computed again"]]
    for system in dict.fromkeys(row["system"] for row in rows):
        of = {k: [r[k] for r in rows if r["system"] == system] for k in rows[0]}
        times = [f"{1e3 * median(of['recovery']):.0f} ms ({1e3 * min(of['recovery']):.0f}–"]
        times[0] += f"{1e3 * max(of['recovery']):.0f})"
        times.append(f"{1e3 * median(of['step']):.0f} ms")
        table.append([system, *times, f"{median(of['again']):g}"])
    notes = (
        f"{RANKS} ranks, one thread each, train a tiny GPT; one gets SIGKILL. Medians of "
        f"{len(rows) // (len(table) - 1)} rounds in turn, and the range. torchft's ranks agree on "
        "a quorum in each step, and nobody keeps a copy of a rank's state: a new rank reads a "
        "living one's. `survive` keeps a partner's copy, also for states that are sharded."
    )
    return Report(NAME, table, notes, rows)
