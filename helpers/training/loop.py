"""The one training loop, for every strategy."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from helpers.data.batch import Batch
from helpers.parallel.strategy import Strategy


class Batches(Protocol):
    """A source of batches, for example `helpers.data.source.Source`."""

    def shard(self, k: int, rank: int, world: int) -> Batch:
        """Return this rank's part of global batch k; it may be empty."""


@dataclass(kw_only=True)
class History:
    """The log of a training run, one dict per step.

    Attributes:
        rows: step, loss, grad_norm, lr, tokens (so far, including those before a load), seconds (so
            far) and tokens_per_second; `skipped` at the steps whose update was skipped.
    """

    rows: list[dict] = field(default_factory=list)

    def column(self, name: str) -> list:
        """Return this value at the steps that have it."""
        return [row[name] for row in self.rows if name in row]

    @property
    def loss(self) -> list[float]:
        return self.column("loss")


def train(
    strategy: Strategy,
    source: Batches,
    *,
    steps: int,
    schedule: Callable[[int], float] | None = None,
    first: int = 0,
    log: Callable[..., None] | None = None,
    log_every: int = 1,
    save: Callable[[dict], None] | None = None,
    save_every: int = 0,
    saved: Mapping | None = None,
) -> History:
    """Train on global batches `first` to `steps` - 1.

    Every rank calls it with the same arguments. To continue a run that stopped, pass as `saved`
    what `save` received, with a `source` that gives the same batches. The run then continues with
    the next batch, the same learning rate and the same count of tokens. (Or `load` the strategy's
    own state and pass `first`.)

    Args:
        schedule: the learning rate by update; None for the optimizer's own. A skipped update does
            not advance the schedule.
        log: called as `log(step=…, loss=…, …)` every `log_every` steps and at the last step;
            usually `worker.log`.
        save: called every `save_every` steps and after the last step (0: only then) with all that a
            later run needs: {"strategy": full state, "step": the next, "updates": …, "tokens": …}.
            Every rank calls it; write the file on one rank.
        saved: what `save` received. It also sets `first`.

    Raises:
        FloatingPointError: the loss is not finite; the message gives the step.
        ValueError: both `first` and `saved` are given.
    """
    if saved and first:
        raise ValueError("`saved` already contains the first step: leave `first` out")
    history, began, tokens, updates = History(), time.perf_counter(), 0, first
    if saved:
        strategy.load(saved["strategy"])
        first, updates, tokens = saved["step"], saved["updates"], saved["tokens"]
    for k in range(first, steps):
        step_began = time.perf_counter()
        lr = schedule(updates) if schedule else None
        batch = source.shard(k, strategy.data_rank, strategy.data_size)
        step = strategy.step(replace(batch, step=k), lr)
        loss = step.loss.item()  # on a GPU this waits for the step
        now = time.perf_counter()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at step {k}: try a lower learning rate or a longer warm-up"
            )
        tokens += step.tokens
        updates += not step.skipped
        row = {
            "step": k,
            "loss": loss,
            "grad_norm": float(step.grad_norm),
            "tokens": tokens,
            "seconds": now - began,
            "tokens_per_second": step.tokens / (now - step_began),
        }
        if lr is not None:
            row["lr"] = lr
        if step.skipped:
            row["skipped"] = True
        last = k == steps - 1
        if save and (last or (save_every > 0 and (k + 1) % save_every == 0)):
            state = strategy.full_state()
            save({"strategy": state, "step": k + 1, "updates": updates, "tokens": tokens})
        history.rows.append(row)
        if log and (last or k % log_every == 0):
            log(**row)
    return history


def evaluate(strategy: Strategy, batches: Iterable[Batch]) -> float:
    """Return the mean loss over all targets of these global batches; the same on every rank."""
    total, count = 0.0, 0
    for batch in batches:
        loss, targets = strategy.evaluate(batch.shard(strategy.data_rank, strategy.data_size))
        total, count = total + loss, count + targets
    return total / max(count, 1)
