"""The twin: one process trained beside a strategy, on the same batches, compared at every step."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import Batch, random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.parallel.strategy import Strategy
from helpers.runtime.launch import launch
from helpers.training.comparison import Comparison, Difference, Side

SMALL = GPTConfig(vocab=256, context=16, width=32, layers=2, heads=4)
WARM_UP = 3  # steps whose time does not count: allocators and buckets are made in them


def compare(
    strategy: Callable[..., Strategy],
    *,
    workers: int = 2,
    steps: int = 20,
    dtype: torch.dtype = torch.float64,
    config: GPTConfig = SMALL,
    layout: Mapping[str, int] | None = None,
    sequences: int = 8,
    batches: Callable[[int], Batch] | None = None,
    optimizer: OptimizerConfig | None = None,
    micro_batches: int = 1,
    seed: int = 0,
    device: str | None = None,
    **options,
) -> Comparison:
    """Train `strategy` on ranks and its single-process twin, and compare them after each step.

    Both begin from the same seed and see the same global batches, with one thread a rank. The
    ranks' own random generators are seeded differently, as in any `launch`. Every rank compares its
    loss, its full gradients and its full parameters with the twin's: so ranks that agree with
    each other on something wrong are found, and one that drifts away alone is too.

    Args:
        strategy: a subclass of Strategy, or whatever is called as one.
        layout: sizes of the mesh's axes; {"dp": workers} if not given.
        sequences: in a global batch, when `batches` is not given: random ones, in which every tenth
            target is ignored, so that the ranks' token counts differ.
        batches: `batches(k)` is global batch k, in any process alike.
        micro_batches: for the strategy; the twin takes each batch whole.
        options: passed on to the strategy.

    Returns:
        Comparison: per rank and step the differences; memory, bytes and time beside the twin's.

    Raises:
        WorkerError: a rank failed.
    """
    __tracebackhide__ = True
    batches = batches or partial(some_batch, seed, sequences, config)
    common = {
        "config": config,
        "seed": seed,
        "dtype": dtype,
        "optimizer": optimizer or OptimizerConfig(),
        "batches": batches,
        "steps": steps,
    }
    twin = launch(train_twin, 1, device=device, **common)[0]
    runs = launch(
        train_beside_twin,
        workers,
        device=device,
        strategy=strategy,
        layout=dict(layout or {"dp": workers}),
        options={"micro_batches": micro_batches, **options},
        twin=twin["record"],
        **common,
    )
    return Comparison(
        name=getattr(strategy, "__name__", type(strategy).__name__),
        dtype=dtype,
        lossy=runs[0]["lossy"],
        twin=twin["side"],
        ranks=tuple(run["side"] for run in runs),
        differences=tuple(row for run in runs for row in run["differences"]),
    )


def some_batch(seed: int, sequences: int, config: GPTConfig, k: int) -> Batch:
    return random_batch(seed * 1_000_003 + k, sequences, config.context, config.vocab, ignored=0.1)


def train_twin(worker, config, seed, dtype, optimizer, batches, steps):
    """One process; keeps what it held after each step."""
    torch.set_num_threads(1)
    twin = Single(config, seed, dtype=dtype, device=worker.device, optimizer=optimizer)
    record, losses, seconds = [twin.full_state()["model"]], [], []
    for k in range(steps):
        began = time.perf_counter()
        step = twin.step(batches(k))
        losses.append(step.loss.item())
        seconds.append(time.perf_counter() - began)
        record.append((losses[-1], twin.full_gradients(), twin.full_state()["model"]))
    return {"record": record, "side": side(twin, batches(steps), losses, seconds)}


def train_beside_twin(
    worker, strategy, layout, options, twin, config, seed, dtype, optimizer, batches, steps
):
    """One rank of the strategy, which compares itself with the twin's record."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(**layout), worker.device)
    trained = strategy(
        config, seed, mesh, dtype=dtype, device=worker.device, optimizer=optimizer, **options
    )
    parts = lambda k: batches(k).shard(trained.data_rank, trained.data_size)  # noqa: E731
    start, *record = twin
    differences = [difference(worker.rank, -1, 0.0, 0.0, {}, {}, trained, start)]
    losses, seconds = [], []
    for k, (loss, gradients, parameters) in enumerate(record):
        part = parts(k)
        began = time.perf_counter()
        step = trained.step(part)
        losses.append(step.loss.item())
        seconds.append(time.perf_counter() - began)
        differences.append(
            difference(
                worker.rank,
                k,
                losses[-1],
                loss,
                trained.full_gradients(),
                gradients,
                trained,
                parameters,
            )
        )
        worker.log(step=k, loss=losses[-1], twin=loss)
    measured = side(trained, parts(steps), losses, seconds)
    trained.close()
    return {"differences": differences, "side": measured, "lossy": trained.lossy}


def difference(rank, step, loss, twin_loss, gradients, twin_gradients, trained, twin_parameters):
    parameters = trained.full_state()["model"]
    gradient, gradient_name = farthest(gradients, twin_gradients)
    parameter, parameter_name = farthest(parameters, twin_parameters)
    return Difference(
        rank=rank,
        step=step,
        loss=abs(loss - twin_loss),
        gradient=gradient,
        gradient_name=gradient_name,
        parameter=parameter,
        parameter_name=parameter_name,
    )


def farthest(ours: Mapping, theirs: Mapping) -> tuple[float, str]:
    """The largest difference of any element, and whose; infinite where a tensor is missing."""
    worst, where = 0.0, ""
    for name in [*theirs, *(ours.keys() - theirs.keys())]:
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape:
            return float("inf"), name
        far = (ours[name].cpu().double() - theirs[name].double()).abs().max().item()
        if not far <= worst:  # NaN too
            worst, where = far, name
    return worst, where


def side(trained: Strategy, part: Batch, losses, seconds) -> Side:
    """Memory, bytes and time of one rank; two more steps are made for the first two."""
    with ledger() as log:
        trained.step(part)
    memory = memory_of(lambda: trained.step(part), trained.model, trained.optimizer)
    counted = seconds[WARM_UP:] or seconds
    return Side(losses=tuple(losses), seconds=statistics.median(counted), memory=memory, ledger=log)
