"""Time how long training waits for a checkpoint: ours on a thread, torch.save, DCP's async_save."""

import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.single import Single
from helpers.state.background import Background
from tests.bench.compare import beside, duration, fio, in_turn, median, one_thread
from tests.bench.report import Report, goal_of, mib, share_of

NAME = "saving"
PRESET, ROUNDS = "10M", 15
COPY, OURS, FIO = "a copy in memory", "background", "fio, writes"
KEPT = "async_save, its copy kept"


def measure(quick: bool = False) -> Report:
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        config = GPTConfig.preset("1M" if quick else PRESET, context=16)
        trained = Single(config, 0)
        trained.step(random_batch(0, 1, 16, config.vocab))
        calls, size = contenders(trained, Path(folder))
        done = {name: [] for name in calls}

        def waited(name: str):
            began = time.perf_counter()
            rest = calls[name](Path(folder, name))
            blocked = time.perf_counter() - began
            if rest:
                rest()
            done[name].append(time.perf_counter() - began)
            shutil.rmtree(Path(folder, name), ignore_errors=True)
            Path(folder, name).unlink(missing_ok=True)
            return blocked

        def written_by_fio(path: Path) -> float:
            done[FIO].append(fio(path, size // 2**20 * 2**20, ["write"], 2**20))
            return done[FIO][-1]

        blocks = {name: lambda name=name: waited(name) for name in calls}
        if shutil.which("fio"):
            done[FIO] = []
            blocks[FIO] = lambda: written_by_fio(Path(folder, "fio"))
        in_turn(blocks, 1)  # the first save allocates
        times = in_turn(blocks, 2 if quick else ROUNDS)
    rows = [
        {
            "contender": name,
            "blocked": median(seconds),
            **beside(seconds, times[COPY]),
            "goal": 1.2 if name == OURS else None,
            "done": median(done[name][1:]) if name != COPY else "",
            "bytes": size,
        }
        for name, seconds in times.items()
    ]
    return report(rows)


def contenders(trained: Single, folder: Path):
    """By name, functions that save to a path and return what waits for the disk; and the bytes."""
    _, tensors, moments = trained.stored()
    state = {f"model.{name}": tensor.detach() for name, tensor in tensors.items()}
    state |= {f"{slot}.{n}": t for n, slots in moments.items() for slot, t in slots.items()}
    size = sum(tensor.nbytes for tensor in state.values())
    source, room = torch.ones(2, size, dtype=torch.uint8)
    background, stager = Background(), DefaultStager(StagingOptions(*[False] * 4))

    def copy(path):
        room.copy_(source)

    def ours(path):
        trained.save(path, background)
        return background.wait

    def theirs(path, **options):
        return dcp.async_save(state, checkpoint_id=path, no_dist=True, **options).result

    return {
        COPY: copy,
        OURS: ours,
        "async_save": theirs,
        KEPT: lambda path: theirs(path, async_stager=stager),
        "torch.save": lambda path: torch.save(state, path),
        "save": lambda path: trained.save(path),
    }, size


def report(rows) -> Report:
    table = [["", "training waits", "over a copy", "goal", "until it is written", "MB/s"]]
    for r in rows:
        table.append(
            [
                r["contender"],
                duration(r["blocked"]),
                "" if r["contender"] == COPY else share_of(r),
                goal_of(r),
                duration(r["done"]) if r["done"] else "",
                f"{r['bytes'] / r['done'] / 1e6:.0f}" if r["done"] else "",
            ]
        )
    notes = (
        f"{mib(rows[0]['bytes'])} of parameters and AdamW's state on one process, one thread. "
        "Background is `save` with a thread: both write checksums and wait for the disk; "
        "`torch.save` does neither, and replaces a file in place. fio writes as much in blocks "
        "of 1 MiB, past the page cache, and waits for the disk. async_save is "
        "torch.distributed.checkpoint's, which waits for the disk; by default it allocates its "
        "copy anew. The copy: as many bytes in a row, into memory that is in use. Contenders run "
        "in turn, each until it has written. A ratio is the median over pairs, with a 95 % "
        "bootstrap interval."
    )
    return Report(NAME, table, notes, rows)
