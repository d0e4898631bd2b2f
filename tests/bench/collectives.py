"""Time collectives on one machine: by messages, and through shared memory."""

import torch
import torch.distributed as dist

from helpers.comm.collectives import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from helpers.comm.shared_memory.collectives import SharedMemory
from helpers.runtime.cluster import Cluster
from tests.bench.compare import in_turn, median, ratio, short, timed
from tests.bench.report import Report
from tests.bench.steps import slowest

NAME = "collectives"
PEER, RING, COPIES, IN_PLACE = "gloo", "ring", "shared, copied", "shared, in place"
CONTENDERS = (PEER, RING, COPIES, IN_PLACE)
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
MB = 2**20
CALLS = {1 * MB: 10, 64 * MB: 1}  # calls per block, by the bytes of the whole buffer
ROUNDS = {1 * MB: 41, 64 * MB: 13}
# PyTorch 2.13 renamed these collectives.
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Key = tuple[str, int, int]  # collective, bytes of the whole buffer, ranks
Samples = dict[Key, dict[str, list[float]]]


def measure(quick: bool = False) -> Report:
    samples: Samples = {}
    for ranks in (2, 4):
        with Cluster(ranks) as cluster:
            for nbytes in CALLS:
                print(f"collectives: {ranks} ranks, {nbytes // MB} MB", flush=True)
                rounds = 2 if quick else ROUNDS[nbytes]
                runs = cluster.run(blocks, nbytes=nbytes, calls=CALLS[nbytes], rounds=rounds)
                for name in COLLECTIVES:
                    samples[name, nbytes, ranks] = slowest(
                        [of_rank[name] for of_rank in runs], CONTENDERS
                    )
    return report(samples)


def blocks(worker, nbytes: int, calls: int, rounds: int) -> dict[str, dict[str, list[float]]]:
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

        def prove(name: str, contender: str):
            """Check one call, without timing it: the ranks' sum, or each rank's number."""
            for buffer in (plain, common, part, own):
                buffer.fill_(worker.rank + 1)
            every[name][contender]()
            dist.barrier()  # no rank refills a buffer that other ranks still read
            if name == "all_gather":
                wanted = torch.arange(1.0, n + 1).repeat_interleave(numel // n)
                assert torch.equal(result, wanted), contender
            else:
                summed = common if contender == IN_PLACE else plain
                after = part if name == "reduce_scatter" else summed
                assert torch.equal(after, torch.full_like(after, n * (n + 1) / 2)), contender

        seconds = {}
        for name in every:
            for contender in CONTENDERS:
                prove(name, contender)
            for buffer in (plain, common):
                buffer.zero_()  # sums of sums stay 0
            turns = {c: timed(call, calls, shared.barrier) for c, call in every[name].items()}
            seconds[name] = in_turn(turns, rounds)
        return seconds


def report(samples: Samples) -> Report:
    table = [["collective", "size", "ranks", *CONTENDERS]]
    rows = []
    for (name, nbytes, ranks), by_name in samples.items():
        cells = []
        for contender in CONTENDERS:
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
        table.append([name, f"{nbytes // MB} MB", str(ranks), *cells])
    notes = (
        "Time per call on the slowest rank, float32, one thread per rank. A MB is 2^20 bytes of "
        "the whole buffer. In brackets: gloo's time over this time (median of the pairs, 95 % "
        "interval). `gloo` is PyTorch's own collective. `ring` is `helpers.comm.collectives`: "
        "messages over gloo. `shared` is `helpers.comm.shared_memory.collectives`: `copied` copies "
        "ordinary tensors; `in place` has its input in shared memory already."
    )
    return Report(NAME, table, notes, rows)
