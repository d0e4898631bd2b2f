"""The one training loop, for every strategy."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from helpers.data.batch import Batch
from helpers.parallel.strategy import Strategy


class Batches(Protocol):
    """Where batches come from: `helpers.data.source.Source`, say."""

    def shard(self, k: int, rank: int, world: int) -> Batch:
        """This rank's part of global batch k; it may be empty."""


@dataclass(kw_only=True)
class History:
    """What a training logged, a dict a step.

    Attributes:
        rows: step, loss, grad_norm, lr, tokens (so far), seconds (so far), tokens_per_second, and
            where known mfu; `validation`, at the steps where it was computed.
    """

    rows: list[dict] = field(default_factory=list)

    def column(self, name: str) -> list:
        """That value at the steps that have it."""
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
    validation: Iterable[Batch] | None = None,
    validate_every: int = 0,
    flops_per_token: float | None = None,
    peak: float | None = None,
    log: Callable[..., None] | None = None,
    log_every: int = 1,
) -> History:
    """Train for global batches first … steps-1.

    Every rank calls it with the same arguments. A run that was stopped goes on: `load` the
    strategy's saved state and pass the next step as `first`; `source` gives the same batches.

    Args:
        schedule: the learning rate by step; None for the optimizer's own.
        validation: global batches that are held out; evaluated every `validate_every` steps, and
            after the last (0: only then).
        flops_per_token: of forward and backward, for the MFU.
        peak: FLOP/s that this rank's processor could do at most, for the MFU: the model's FLOP/s
            over the peak of all processors (Chowdhery et al. 2022, appendix B).
        log: called as `log(step=…, loss=…, …)` every `log_every` steps and at the last:
            `worker.log`.

    Raises:
        FloatingPointError: the loss is not finite; says at which step.
    """
    history, began, tokens = History(), time.perf_counter(), 0
    batches = list(validation or ())
    for k in range(first, steps):
        step_began = time.perf_counter()
        lr = schedule(k) if schedule else None
        step = strategy.step(source.shard(k, strategy.data_rank, strategy.data_size), lr)
        loss = step.loss.item()  # on a GPU this waits for the step
        now = time.perf_counter()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at step {k}: try a lower learning rate, a longer warm-up"
            )
        tokens += step.tokens
        rate = step.tokens / (now - step_began)
        row = {
            "step": k,
            "loss": loss,
            "grad_norm": float(step.grad_norm),
            "tokens": tokens,
            "seconds": now - began,
            "tokens_per_second": rate,
        }
        if lr is not None:
            row["lr"] = lr
        if peak and flops_per_token:
            row["mfu"] = rate * flops_per_token / (peak * strategy.world_size)
        last = k == steps - 1
        if batches and (last or (validate_every and (k + 1) % validate_every == 0)):
            row["validation"] = evaluate(strategy, batches)
        history.rows.append(row)
        if log and (last or k % log_every == 0):
            log(**row)
    return history


def evaluate(strategy: Strategy, batches: Iterable[Batch]) -> float:
    """The mean loss over all targets of these global batches; the same on every rank."""
    total, count = 0.0, 0
    for batch in batches:
        loss, targets = strategy.evaluate(batch.shard(strategy.data_rank, strategy.data_size))
        total, count = total + loss, count + targets
    return total / max(count, 1)
