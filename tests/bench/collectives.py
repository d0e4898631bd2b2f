"""Time collectives on one machine: by messages, by MPI, and through shared memory.

python -m tests.bench.collectives FILE    on ranks that mpiexec started: measure, and write FILE
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from helpers.check.week03.mpiexec import find_mpiexec, private
from helpers.comm.collectives import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from helpers.comm.shared_memory.collectives import SharedMemory
from helpers.runtime.launch import launch
from tests.bench.compare import in_turn, median, ratio, short, timed
from tests.bench.report import Report
from tests.bench.steps import slowest

NAME = "collectives"
PEER, MPI, RING, COPIES, IN_PLACE = "gloo", "MPICH", "ring", "shared, copied", "shared, in place"
SPINNING = "spinning loop"
CONTENDERS = (PEER, MPI, RING, COPIES, IN_PLACE, SPINNING)
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
KB, MB = 2**10, 2**20
CALLS = {64 * KB: 50, 1 * MB: 10, 64 * MB: 1}  # calls per block, by the bytes of the whole buffer
ROUNDS = {64 * KB: 41, 1 * MB: 41, 64 * MB: 13}
# PyTorch 2.13 renamed these collectives.
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Key = tuple[str, int, int]  # collective, bytes of the whole buffer, ranks
Samples = dict[Key, dict[str, list[float]]]


def measure(quick: bool = False) -> Report:
    samples: Samples = {}
    for ranks in (2, 4):
        print(f"collectives: {ranks} ranks", flush=True)
        for nbytes, runs in on_mpi_ranks(ranks, quick).items():
            for name in COLLECTIVES:
                contenders = [one for one in CONTENDERS if one in runs[0][name]]
                times = slowest([of_rank[name] for of_rank in runs], contenders)
                samples[name, int(nbytes), ranks] = times
    return report(samples)


def on_mpi_ranks(ranks: int, quick: bool) -> dict[str, list]:
    """Start this file by mpiexec, so that MPI works in the same processes: [bytes][rank]."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "seconds.json")
        command = [find_mpiexec(), "-n", str(ranks), sys.executable, "-m", __spec__.name]
        subprocess.run([*private(), *command, str(file), *["--quick"] * quick], check=True)
        return json.loads(file.read_text())


def main(file: str, quick: bool):
    """Measure on the ranks that mpiexec started."""
    runs = {
        nbytes: list(
            launch(
                blocks,
                device="cpu",
                timeout=None,
                nbytes=nbytes,
                calls=CALLS[nbytes],
                rounds=2 if quick else ROUNDS[nbytes],
                mpi=True,
            )
        )
        for nbytes in CALLS
    }
    if os.environ["PMI_RANK"] == "0":
        Path(file).write_text(json.dumps(runs))


def blocks(
    worker, nbytes: int, calls: int, rounds: int, mpi: bool = False
) -> dict[str, dict[str, list[float]]]:
    """Measure the seconds per call on this rank: [collective][contender][round]."""
    torch.set_num_threads(1)
    numel, n = nbytes // 4, worker.world_size
    with SharedMemory() as shared:
        plain, result, common = torch.empty(numel), torch.empty(numel), shared.empty(numel)
        part, own = torch.empty(numel // n), shared.empty(numel // n)
        every = {
            "all_reduce": {
                PEER: lambda: dist.all_reduce(plain),
                RING: lambda: ring_all_reduce(plain),
                COPIES: lambda: shared.all_reduce(plain),
                IN_PLACE: lambda: shared.all_reduce(common),
            },
            "reduce_scatter": {
                PEER: lambda: REDUCE_SCATTER(part, plain),
                RING: lambda: ring_reduce_scatter(part, plain),
                COPIES: lambda: shared.reduce_scatter(part, plain),
                IN_PLACE: lambda: shared.reduce_scatter(part, common),
            },
            "all_gather": {
                PEER: lambda: ALL_GATHER(result, part),
                RING: lambda: ring_all_gather(result, part),
                COPIES: lambda: shared.all_gather(result, part),
                IN_PLACE: lambda: shared.all_gather(result, own),
            },
        }
        if mpi:
            for name, call in by_mpi(plain, part, result).items():
                every[name][MPI] = call

        summed = {IN_PLACE: common}  # by contender; others sum `plain`
        if n == 2:  # more ranks than cores would wait for each other's time slices
            summed[SPINNING], every["all_reduce"][SPINNING] = spinning(shared, numel)

        def prove(name: str, contender: str):
            """Check one call, without timing it: the ranks' sum, or each rank's number."""
            for buffer in (plain, part, own, *summed.values()):
                buffer.fill_(worker.rank + 1)
            every[name][contender]()
            dist.barrier()  # no rank refills a buffer that other ranks still read
            if name == "all_gather":
                wanted = torch.arange(1.0, n + 1).repeat_interleave(numel // n)
                assert torch.equal(result, wanted), contender
            else:
                after = part if name == "reduce_scatter" else summed.get(contender, plain)
                assert torch.equal(after, torch.full_like(after, n * (n + 1) / 2)), contender

        seconds = {}
        for name in every:
            for contender in every[name]:
                prove(name, contender)
            for buffer in (plain, *summed.values()):
                buffer.zero_()  # sums of sums stay 0
            turns = {c: timed(call, calls, shared.barrier) for c, call in every[name].items()}
            seconds[name] = in_turn(turns, rounds)
        return seconds


def spinning(shared: SharedMemory, numel: int) -> tuple[torch.Tensor, Callable[[], None]]:
    """The least that an all-reduce of two ranks in shared memory can cost: polls, a sum, a copy.

    It compares no calls, notices no lost rank, and a rank that waits keeps its core busy.

    Returns:
        This rank's numbers, and the all-reduce of them.
    """
    segments, rank = shared.room.segments, shared.rank
    rows = [part[: 4 * numel].view(torch.float32) for part in segments.allocate(4 * numel, "rows")]
    flags = [part[:8].view(torch.int64).numpy() for part in segments.allocate(8, "flags")]
    mine, theirs = (row.chunk(2)[rank] for row in (rows[rank], rows[1 - rank]))
    own, other = flags[rank], flags[1 - rank]

    def wait():
        own[0] += 1
        while other[0] < own[0]:
            pass

    def reduce():
        wait()
        torch.add(mine, theirs, out=mine)
        theirs.copy_(mine)
        wait()

    return rows[rank], reduce


def by_mpi(plain: torch.Tensor, part: torch.Tensor, result: torch.Tensor) -> dict:
    """The collectives of the MPI library that started these ranks."""
    from mpi4py import MPI as mpi4py

    plain, part, result = plain.numpy(), part.numpy(), result.numpy()
    world = mpi4py.COMM_WORLD
    return {
        "all_reduce": partial(world.Allreduce, mpi4py.IN_PLACE, plain),
        "reduce_scatter": partial(world.Reduce_scatter_block, plain, part),
        "all_gather": partial(world.Allgather, part, result),
    }


def report(samples: Samples) -> Report:
    table = [["collective", "size", "ranks", *CONTENDERS]]
    rows = []
    for (name, nbytes, ranks), by_name in samples.items():
        cells = []
        for contender in CONTENDERS:
            if contender not in by_name:
                cells.append("")
                continue
            times = by_name[contender]
            against = None if contender == PEER else ratio(times, by_name[PEER])
            cells.append(f"{short(median(times) * 1e3)} ms" + (f" [{against}]" if against else ""))
            rows.append(
                {
                    "collective": name,
                    "bytes": nbytes,
                    "ranks": ranks,
                    "contender": contender,
                    "median": f"{median(times):.6f}",
                    "ratio": f"{against.median:.3f}" if against else "",
                    "low": f"{against.low:.3f}" if against else "",
                    "high": f"{against.high:.3f}" if against else "",
                    "seconds": " ".join(f"{t:.6f}" for t in times),
                }
            )
        size = f"{nbytes // MB} MB" if nbytes >= MB else f"{nbytes // KB} KB"
        table.append([name, size, str(ranks), *cells])
    notes = (
        "Time per call on the slowest rank, float32, one thread per rank. A MB is 2^20 bytes of "
        "the whole buffer. In brackets: gloo's time over this time (median of the pairs, 95 % "
        "interval). `gloo` is PyTorch's own collective. `MPICH` is called by mpi4py, in the "
        "same processes, which mpiexec started. `ring` is `helpers.comm.collectives`: "
        "messages over gloo. `shared` is `helpers.comm.shared_memory.collectives`: `copied` copies "
        "ordinary tensors; `in place` has its input in shared memory already. The `spinning loop` "
        "is the least that it could cost: it only polls, adds and copies, and does not notice "
        "errors."
    )
    return Report(NAME, table, notes, rows)


if __name__ == "__main__":
    main(sys.argv[1], "--quick" in sys.argv)
