"""Seven training runs whose checkpoints lie, each by a mistake that a known project made.

`plant(lie, …)` trains 12 updates and saves after 4, 8 and 12, with the mistake. `check_checkpoints`
finds each.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from helpers.data.batch import Batch
from helpers.parallel.strategy import Strategy
from helpers.resilience.audit import LATEST

EVERY, LAST = 4, 12


def honest(strategy: Strategy, folder: Path, updates: int):
    strategy.save(folder / f"step_{updates:06d}", updates=updates)
    (folder / LATEST).write_text(f"step_{updates:06d}")


def one_step_late(strategy: Strategy, folder: Path, updates: int, batch: Batch):
    """Tensors of the CPU were saved while the next step changed them (PyTorch issue 144657)."""
    strategy.step(batch)
    honest(strategy, folder, updates)


def copies_of_the_first(strategy: Strategy, folder: Path, updates: int, batch: Batch):
    """Every checkpoint writes the tensors that the first one staged (torchtitan issue 930)."""
    if updates == EVERY:
        return honest(strategy, folder, updates)
    kept, now = folder / f"step_{EVERY:06d}", strategy.full_state()
    strategy.restore(kept)
    honest(strategy, folder, updates)
    strategy.load(now)


def tracker_ahead(strategy: Strategy, folder: Path, updates: int, batch: Batch):
    """`latest` names a step that was never finished."""
    honest(strategy, folder, updates)
    (folder / LATEST).write_text(f"step_{updates + EVERY:06d}")


def cleaned_up_too_early(strategy: Strategy, folder: Path, updates: int, batch: Batch):
    """The old checkpoint is deleted before the disk has the new one, then a rank is killed."""
    honest(strategy, folder, updates)
    shutil.rmtree(folder / f"step_{updates - EVERY:06d}", ignore_errors=True)
    if updates == LAST:
        next((folder / f"step_{updates:06d}").glob("*.distcp")).unlink()


def moments_of_half_the_tensors_zero(strategy: Strategy, folder: Path, updates: int, batch: Batch):
    """One rank's optimizer was not saved: half of the tensors have first moments of zero."""
    _, _, moments = strategy.stored()
    names = sorted(moments)[: len(moments) // 2]
    kept = {name: moments[name]["exp_avg"].clone() for name in names}
    for name in names:
        moments[name]["exp_avg"].zero_()
    honest(strategy, folder, updates)
    for name, value in kept.items():
        moments[name]["exp_avg"].copy_(value)


def ranks_of_two_steps(strategy: Strategy, folder: Path, updates: int, batch: Batch):
    """Ranks save at different moments: some tensors are of the checkpoint before."""
    state = strategy.full_state()
    if updates > EVERY:
        strategy.restore(folder / f"step_{updates - EVERY:06d}")
        old = strategy.full_state()
        mixed = {part: dict(values) for part, values in state.items()}
        for name in sorted(state["model"])[::3]:
            mixed["model"][name] = old["model"][name]
            mixed["optimizer"][name] = old["optimizer"][name]
        strategy.load(mixed)
    honest(strategy, folder, updates)
    strategy.load(state)


def data_from_the_start(strategy: Strategy, folder: Path, updates: int, batch: Batch):
    """After a restart the loader begins anew: see `plant`."""
    honest(strategy, folder, updates)


LIES: dict[str, Callable] = {
    lie.__name__.replace("_", " "): lie
    for lie in (
        one_step_late,
        copies_of_the_first,
        tracker_ahead,
        cleaned_up_too_early,
        moments_of_half_the_tensors_zero,
        ranks_of_two_steps,
        data_from_the_start,
    )
}


def plant(
    lie: str | None,
    folder: Path,
    make: Callable[[], Strategy],
    batch_of: Callable[[int], Batch],
):
    """Train and save with a mistake of `LIES`; None trains without one."""
    strategy, again = make(), lie == "data from the start"
    for k in range(LAST):
        batch = batch_of(k - EVERY if again and k >= EVERY else k)
        strategy.step(batch)
        if (k + 1) % EVERY == 0:
            if lie is None:
                honest(strategy, folder, k + 1)
            else:
                LIES[lie](strategy, folder, k + 1, batch_of(k + 1))
    strategy.close()
