"""The twin: one process trained on the same batches as a strategy, and compared at every step."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import Batch, random_batch
from helpers.measure.memory import memory_of
from helpers.models.config import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.parallel.strategy import Strategy
from helpers.runtime.devices import choose_device
from helpers.runtime.joined import member
from helpers.runtime.launch import launch
from helpers.training.comparison import Comparison, Side
from helpers.training.differences import after_a_step, at_the_start
from helpers.training.locate import locate as first_departure
from helpers.training.witness import witness

SMALL = GPTConfig(vocab=256, context=16, width=32, layers=2, heads=4)
AFTER_LOAD = 2  # steps to compare after a load
WARM_UP = 3  # first steps whose time does not count: they create allocators and buckets


def compare(
    strategy: Callable[..., Strategy],
    *,
    workers: int | None = None,
    steps: int = 20,
    dtype: torch.dtype = torch.float64,
    config=SMALL,
    layout: Mapping[str, int] | None = None,
    sequences: int = 8,
    batches: Callable[[int], Batch] | None = None,
    optimizer: OptimizerConfig | None = None,
    micro_batches: int = 1,
    seed: int = 0,
    device: str | None = None,
    locate: bool = False,
    **options,
) -> Comparison:
    """Train `strategy` on ranks, train one process beside it, and compare them after each step.

    The single process is the **twin**. Both start from the same seed and see the same global
    batches, with one thread per rank. As in any `launch`, the ranks' own random generators have
    different seeds. Every rank compares its loss, its full gradients and its full parameters with
    the twin's. So the comparison finds ranks that agree with each other on something wrong, and a
    single rank that drifts away. At the end the strategy is built again, loads its saved state, and
    is compared for two more steps.

    The twin and the ranks run on the same kind of device: on GPUs if there is one for each rank.

    Args:
        strategy: a subclass of Strategy, a Recipe, or a callable with the same arguments.
        config: of a GPT, or of another model that a Trainer can build.
        workers: ranks; by default as many as the layout has, or 2.
        layout: sizes of the mesh's axes; by default the recipe's own, or {"dp": workers}.
        sequences: in a global batch, if `batches` is not given. These batches are random, and a
            random tenth of the targets is ignored, so that the ranks' token counts differ.
        batches: `batches(k)` returns global batch k, the same in every process.
        micro_batches: for the strategy; the twin takes each batch whole.
        locate: after a disagreement, train both up to that step again. Find the first module, rank
            and pass that departs, with a guess at the mistake.
        options: passed on to the strategy.

    Returns:
        Comparison: the differences per rank and step; memory, bytes and time beside the twin's.

    Raises:
        WorkerError: a rank failed.
    """
    __tracebackhide__ = True
    own = getattr(strategy, "layout", None)
    if layout is None and own is not None:
        layout = dict(zip(own.axes, own.shape, strict=True))
    workers = workers or math.prod((layout or {"dp": 2}).values())
    batches = batches or partial(some_batch, seed, sequences, config)
    common = {
        "config": config,
        "seed": seed,
        "dtype": dtype,
        "optimizer": optimizer or OptimizerConfig(),
        "batches": batches,
        "steps": steps,
    }
    if not member.here():  # a launcher has chosen already
        device, _ = choose_device(workers, device)  # for both: the twin alone might get a GPU
    twin = launch(train_twin, 1, device=device, **common)[0]
    ranks = {
        "strategy": strategy,
        "layout": dict(layout or {"dp": workers}),
        "options": {"micro_batches": micro_batches, **options},
    }
    runs = launch(train_beside_twin, workers, device=device, twin=twin["record"], **ranks, **common)
    comparison = Comparison(
        name=getattr(strategy, "__name__", type(strategy).__name__),
        dtype=dtype,
        lossy=runs[0]["lossy"],
        bound=runs[0]["bound"],
        twin=twin["side"],
        ranks=tuple(run["side"] for run in runs),
        differences=tuple(row for run in runs for row in run["differences"]),
    )
    if locate and (wrong := comparison.first_wrong()):
        step = max(wrong[1].step, 0)
        alone = {"strategy": Single, "layout": None, "options": {}}
        (seen,) = launch(see, 1, device=device, looked_at=[step], **alone, **common)[0]
        runs = launch(see, workers, device=device, looked_at=[step], **ranks, **common)
        every = [only for (only,) in runs]
        where = first_departure(step, Layout(**ranks["layout"]), seen, every, dtype)
        comparison = replace(comparison, location=where)
    return comparison


def some_batch(seed: int, sequences: int, config: GPTConfig, k: int) -> Batch:
    return random_batch(seed * 1_000_003 + k, sequences, config.context, config.vocab, ignored=0.1)


def train_twin(worker, config, seed, dtype, optimizer, batches, steps):
    """Train one process; record loss, gradients and parameters after each step."""
    torch.set_num_threads(1)
    twin = Single(config, seed, dtype=dtype, device=worker.device, optimizer=optimizer)
    record, seconds = [twin.full_state()["model"]], []
    for k in range(steps + AFTER_LOAD):
        began = time.perf_counter()
        loss = twin.step(replace(batches(k), step=k)).loss.item()
        seconds.append(time.perf_counter() - began)
        record.append((loss, twin.full_gradients(), twin.full_state()["model"]))
    losses = [loss for loss, *_ in record[1 : steps + 1]]
    return {"record": record, "side": side(twin, batches(steps), losses, seconds[:steps])}


def train_beside_twin(
    worker, strategy, layout, options, twin, config, seed, dtype, optimizer, batches, steps
):
    """Train one rank of the strategy, and compare it with the twin's record."""
    torch.set_num_threads(1)
    make = maker(worker, strategy, layout, options, config, seed, dtype, optimizer)
    trained = make()
    first, *record = twin
    differences = [at_the_start(worker.rank, trained, first)]
    losses, seconds = [], []
    for k, recorded in enumerate(record):
        if k == steps:
            trained = made_anew(trained, make)
        part = replace(batches(k), step=k).shard(trained.data_rank, trained.data_size)
        began = time.perf_counter()
        losses.append(trained.step(part).loss.item())
        seconds.append(time.perf_counter() - began)
        differences.append(
            after_a_step(worker.rank, k, trained, losses[-1], first, recorded, loaded=k >= steps)
        )
        if k < steps:
            worker.log(step=k, loss=losses[-1], twin=recorded[0])
    part = batches(steps).shard(trained.data_rank, trained.data_size)
    measured = side(trained, part, losses[:steps], seconds[:steps])
    trained.close()
    return {
        "differences": differences,
        "side": measured,
        "lossy": trained.lossy,
        "bound": trained.bound,
    }


def see(
    worker, strategy, layout, options, looked_at, config, seed, dtype, optimizer, batches, steps
):
    """Train on ranks, or on one process (without a layout), and record the steps `looked_at`."""
    torch.set_num_threads(1)
    make = maker(worker, strategy, layout, options, config, seed, dtype, optimizer)
    trained, seen = make(), []
    for k in range(max(looked_at) + 1):
        if k == steps and layout:
            trained = made_anew(trained, make)
        part = replace(batches(k), step=k).shard(trained.data_rank, trained.data_size)
        if k in looked_at:
            seen.append(witness(trained, part, optimizer))
        else:
            trained.step(part)
    trained.close()
    return seen


def maker(worker, strategy, layout, options, config, seed, dtype, optimizer):
    """Return a function that builds the strategy on this rank."""
    mesh = make_mesh(Layout(**layout), worker.device) if layout else None
    options = options | {"dtype": dtype, "device": worker.device, "optimizer": optimizer}
    return partial(strategy, config, seed, mesh, **options)


def made_anew(trained: Strategy, make: Callable[[], Strategy]) -> Strategy:
    """Build the strategy again, and load the state of the old one."""
    saved = trained.full_state()
    trained.close()
    trained = make()
    trained.load(saved)
    return trained


def side(trained: Strategy, part: Batch, losses, seconds) -> Side:
    """Measure memory, bytes and time of one rank; memory and bytes take one more step each."""
    with ledger() as log:
        trained.step(part)
    memory = memory_of(lambda: trained.step(part), trained.model, trained.optimizer)
    kinds = ("parameters", "gradients", "optimizer")  # of a strategy that cannot count by itself
    measured = {(kind, "measured"): getattr(memory, kind) for kind in kinds}
    return Side(
        losses=tuple(losses),
        seconds=typical(seconds),
        memory=memory,
        ledger=log,
        held=dict(trained.held()) or measured,
    )


def typical(seconds: Sequence[float]) -> float:
    """Return the median step's time, without the first steps if there are others."""
    return statistics.median(seconds[WARM_UP:] or seconds)
