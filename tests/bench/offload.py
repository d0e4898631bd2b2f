"""Time offload: AdamW's state on disk, activations in host memory, updates beside the computation.

The host's AdamW is beside DeepSpeedCPUAdam in `adam`. Where the program `fio` is installed, its
sequential rates are beside the state on disk.
"""

import mmap
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import torch

from helpers.data.batch import random_batch
from helpers.measure.saved import saved_by
from helpers.models.gpt import GPTConfig
from helpers.parallel.offload.activations import activations_on_host
from helpers.parallel.offload.blocks import BlockFile
from helpers.parallel.offload.delay import delayed
from helpers.parallel.offload.host import OnHost
from helpers.parallel.offload.speculate import COMPUTE, speculative
from helpers.parallel.offload.state import StateOnDisk, host_adamw
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.trainer import Recipe
from tests.bench.compare import beside, duration, fio, in_turn, median, one_thread, timed
from tests.bench.report import Report, mib, share_of

NAME = "offload"
NUMBERS, BLOCK = 2**24, 2**24  # parameters, and bytes of a block
PRESET, TOKENS, STEPS = "10M", 512, 2  # of training; steps in a block of time
SHORT = 128  # tokens, where the update matters
ROUNDS = 9
RULE = OptimizerConfig(clip=None)
PLAIN, MEMORY, FIO = "plain reads, then writes", "AdamW in memory", "fio, reads, then writes"
BUFFERS = {"1 buffer": 1, "4 buffers": 4}
ACTIVATIONS = {
    "kept": ("none", Recipe()),
    "recomputed in part": ("selective", Recipe()),
    "recomputed": ("full", Recipe()),
    "on the host": ("none", Recipe(engine=activations_on_host())),
}
UPDATES = {
    "after the backward": Recipe(precision=OnHost()),
    "in the backward": Recipe(owner=speculative(), precision=OnHost()),
    "one step late": Recipe(owner=delayed(), precision=OnHost()),
}


def measure(quick: bool = False) -> Report:
    rounds = 2 if quick else ROUNDS
    preset, tokens, short = ("1M", 16, 8) if quick else (PRESET, TOKENS, SHORT)
    numbers, block = (2**14, 2**14) if quick else (NUMBERS, BLOCK)
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        print("offload: disk", flush=True)
        rows = on_disk(Path(folder), numbers, block, rounds)
        print("offload: activations", flush=True)
        rows += activations(preset, tokens, rounds)
        print("offload: updates", flush=True)
        rows += updates(preset, short, rounds)
    return report(rows)


def on_disk(folder: Path, numbers: int, block: int, rounds: int) -> list[dict]:
    """An update whose state passes through buffers, beside the same bytes without an update."""
    gradients = {"p": torch.randn(numbers)}
    states = {
        name: StateOnDisk({"p": torch.randn(numbers)}, [], folder / name, 0, block, buffers)
        for name, buffers in BUFFERS.items()
    }
    for state in states.values():
        state.write({}, {})
    count = len(states["1 buffer"].blocks)
    calls = {PLAIN: plain(folder, block, count)}
    calls |= {n: partial(s.update, gradients, RULE, {"p": 0.1}, {}) for n, s in states.items()}
    calls[MEMORY] = in_memory(gradients["p"])
    turns = {name: timed(call) for name, call in calls.items()}
    if shutil.which("fio"):
        turns[FIO] = partial(fio, folder / "fio", block * count, ("read", "write"), block)
    rows = rows_of("state on disk", turns, rounds)
    for row in rows:
        if row["contender"] != MEMORY:
            row["rate"] = 2 * block * count / row["median"]
        if state := states.get(row["contender"]):
            row["overlapped"] = hidden(state.stream.trace, "communication")
            state.close()
    return rows


def plain(folder: Path, block: int, count: int):
    """Read a file, then write another one, one block at a time, past the page cache."""
    source, target = (BlockFile(folder / name, block, count) for name in ("source", "target"))
    buffer = mmap.mmap(-1, block)
    buffer[:] = os.urandom(block)

    def write(file):
        for k in range(count):
            file.whole(os.pwritev, k, buffer)  # without a checksum
        file.flush()

    def read_and_write():
        for k in range(count):
            source.read(k, buffer)
        write(target)

    write(source)  # a file without content would be read without the disk
    return read_and_write


def in_memory(gradient: torch.Tensor):
    """The update of as many numbers that are in memory."""
    p, m, v = torch.randn(len(gradient)), torch.zeros_like(gradient), torch.zeros_like(gradient)
    adamw, steps = host_adamw(p.dtype), iter(range(1, 10**9))
    return lambda: adamw(p, gradient, m, v, next(steps), RULE.lr, RULE.betas, RULE.eps, 0.1)


def activations(preset: str, tokens: int, rounds: int) -> list[dict]:
    """Training steps that keep activations, recompute them, or send them to the host."""
    trainers, saved = {}, {}
    for name, (recompute, recipe) in ACTIVATIONS.items():
        config = GPTConfig.preset(preset, context=tokens, recompute=recompute)
        trained = trainers[name] = recipe(config)
        batch = random_batch(0, 1, tokens, config.vocab)
        kept = saved_by(lambda t=trained, b=batch: t.model.loss(b)[0], trained.model)
        saved[name] = sum(one.bytes for one in kept)
    rows = rows_of("activations", steps_of(trainers, tokens), rounds)
    for row in rows:
        offloads = getattr(trainers[row["contender"]].engine, "activations", None)
        kind = "saved" if offloads is None else "sent"
        row[kind] = saved[row["contender"]]
    return rows


def updates(preset: str, tokens: int, rounds: int) -> list[dict]:
    """Training steps whose update on the host begins after the backward, before, or later."""
    config = GPTConfig.preset(preset, context=tokens)
    trainers = {name: recipe(config, optimizer=RULE) for name, recipe in UPDATES.items()}
    rows = rows_of("updates on the host", steps_of(trainers, tokens), rounds)
    for row in rows:
        if row["contender"] == "in the backward":
            owner = trainers[row["contender"]].owner
            row["overlapped"] = hidden(owner.trace, COMPUTE)
    return rows


def steps_of(trainers: dict, tokens: int) -> dict:
    """By name, the time of some training steps, with the wait for the last update."""

    def steps(trained, batch):
        for _ in range(STEPS):
            trained.step(batch)
        trained.owner.moments()

    batches = {n: random_batch(0, 1, tokens, t.config.vocab) for n, t in trainers.items()}
    return {name: timed(partial(steps, t, batches[name])) for name, t in trainers.items()}


def hidden(trace, other: str) -> float:
    """The share of the updates' time in which the other kind of work ran too."""
    return trace.overlap("update", other) / trace.busy("update")


def rows_of(work: str, turns: dict, rounds: int) -> list[dict]:
    """Measure all in turn, beside the first of them."""
    in_turn(turns, 1)  # the first call allocates
    times = in_turn(turns, rounds)
    first = next(iter(times.values()))
    empty = dict.fromkeys(("rate", "overlapped", "saved", "sent"), "")
    return [
        {"work": work, "contender": n, "median": median(t), **beside(t, first), **empty}
        for n, t in times.items()
    ]


def report(rows) -> Report:
    table = [["", "", "median", "over the first", "MB/s", "overlapped", "saved", "to the host"]]
    for r in rows:
        first = table[-1][0] != r["work"] and r["ratio"] == 1
        table.append(
            [
                r["work"],
                r["contender"],
                duration(r["median"]),
                "" if first else share_of(r),
                f"{r['rate'] / 1e6:,.0f}" if r["rate"] else "",
                f"{r['overlapped']:.0%}" if r["overlapped"] != "" else "",
                mib(r["saved"]) if r["saved"] else "",
                mib(r["sent"]) if r["sent"] else "",
            ]
        )
    notes = (
        f"One thread computes. State on disk: AdamW in float32, {NUMBERS / 1e6:.1f} million "
        f"parameters, blocks of {BLOCK >> 20} MiB past the page cache. Each update reads the state "
        "and writes a new version, with checksums; the first contender moves the same bytes, and "
        f"updates nothing. fio reads, then writes as much, in blocks of this size, with direct=1. "
        f"Activations: {STEPS} steps of a GPT of {PRESET} parameters, "
        f"{TOKENS} tokens; saved is what waits for the backward on the device. Here device and "
        "host are one memory, so the offload is two copies. Updates on the host: "
        f"{STEPS} steps with {SHORT} tokens, without clipping; the update has a thread of its "
        "own in two of them. Overlapped: the share of the updates' time in which reads, writes or "
        "the backward ran too. Contenders run in turn. A ratio is the median over pairs, with a "
        "95 % bootstrap interval."
    )
    return Report(NAME, table, notes, rows)
