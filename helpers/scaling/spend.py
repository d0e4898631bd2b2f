"""Train a small model on bytes with a budget of FLOPs, and watch its held-out loss."""

from collections.abc import Iterator

from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.parallel.single import Single
from helpers.scaling.design import BATCH, LENGTH, WARM_UP
from helpers.scaling.sweep import sequence_losses, spread_out
from helpers.training.loop import train
from helpers.training.schedule import Cosine

HELD_OUT = 256  # sequences that each loss averages over


def held_out():
    """The held-out batches of every run."""
    return spread_out(pack("python", length=LENGTH, split="validation"), HELD_OUT)


def spend(
    strategy: Single, seed: int, *, budget: float, each: int, rate: float, stops: int
) -> Iterator[dict]:
    """Train, and stop several times.

    Args:
        seed: of the order of the text.
        budget: FLOPs of the run.
        each: FLOPs of a step.
        rate: the highest learning rate of a cosine that ends with the budget.
        stops: how many losses.

    Yields:
        step, FLOPs so far, and the loss in nats a byte.
    """
    blocks, judged = pack("python", length=LENGTH), held_out()
    source = Source(blocks, Order(len(blocks), BATCH, seed=seed))
    steps, done = round(budget / each), 0
    schedule = Cosine(peak=rate, steps=steps, warmup=round(WARM_UP * steps))
    for stop in (round(steps * (i + 1) / stops) for i in range(stops)):
        train(strategy, source, steps=stop, first=done, schedule=schedule)
        strategy.model.eval()
        done, loss = stop, round(float(sequence_losses(strategy, judged).mean()), 5)
        strategy.model.train()
        yield {"step": stop, "flops": stop * each, "loss": loss}
