"""How long a call takes: wall and CPU time, after a warm-up, as medians."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from helpers.measure.draw import seconds_text, table, text


@dataclass(frozen=True)
class Timing:
    """What `time_of` found.

    Attributes:
        name: of the function.
        wall: seconds of wall time a call, one for each repeat, in order.
        cpu: seconds of CPU time a call, of all threads of this process, one for each repeat. More
            than the wall time where several threads work; less where the call waits.
    """

    name: str
    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median wall time: a disturbance of a few repeats does not move it."""
        return statistics.median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """The median CPU time."""
        return statistics.median(self.cpu)

    @property
    def spread(self) -> tuple[float, float]:
        """The first and the third quartile of the wall times, in seconds."""
        if len(self.wall) == 1:
            return self.wall[0], self.wall[0]
        low, _, high = statistics.quantiles(self.wall, n=4, method="inclusive")
        return low, high

    def _rows(self) -> dict[str, str]:
        low, high = map(seconds_text, self.spread)
        return {
            "wall time, median": seconds_text(self.seconds),
            "half of the repeats lie in": f"{low} … {high}",
            "CPU time, median": seconds_text(self.cpu_seconds),
            "repeats": str(len(self.wall)),
        }

    def __repr__(self):
        return text(self.name, self._rows())

    def _repr_html_(self):
        return table(self.name, self._rows())

    def plot(self):
        """Each repeat as a dot, in order, and the median. Returns a Picture."""
        from helpers.plots.picture import Picture
        from helpers.plots.style import RANK_COLORS

        figure = Picture(figsize=(5.2, 2.2), dpi=80, layout="constrained")
        axes = figure.subplots()
        for times, label, color in (
            (self.wall, "wall", RANK_COLORS[0]),
            (self.cpu, "CPU", RANK_COLORS[1]),
        ):
            axes.plot([t * 1e3 for t in times], "o", markersize=4, color=color, label=label)
            axes.axhline(statistics.median(times) * 1e3, color=color, lw=1, alpha=0.6)
        axes.set(title=self.name, xlabel="repeat", ylabel="milliseconds a call", ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        return figure


def time_of(
    call: Callable[[], object],
    *,
    repeats: int = 7,
    warmup: int = 2,
    calls: int = 1,
    name: str | None = None,
) -> Timing:
    """Time `call()`.

    The counts are fixed, never chosen by the clock: on several ranks all make the same number of
    calls, so that `call` may be a collective.

    Args:
        call: takes no argument. Where CUDA is in use, its queued work is waited for.
        repeats: how many times are taken; the medians are over these.
        warmup: calls before, not timed: caches, allocators, connections, compilation.
        calls: calls in one repeat, for what is shorter than a clock can tell (about 1e-6 seconds);
            a repeat's time is divided by it.

    Raises:
        ValueError: a count below what makes sense.
    """
    if repeats < 1 or calls < 1 or warmup < 0:
        raise ValueError(f"{repeats=} and {calls=} are to be at least 1, {warmup=} at least 0")
    for _ in range(warmup):
        call()
    wall, cpu = [], []
    for _ in range(repeats):
        wait_for_device()
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(calls):
            call()
        wait_for_device()
        wall.append((time.perf_counter() - wall_start) / calls)
        cpu.append((time.process_time() - cpu_start) / calls)
    return Timing(name or getattr(call, "__name__", "call"), tuple(wall), tuple(cpu))


def wait_for_device():
    """A CUDA call returns when its work is queued; only a finished queue can be timed."""
    import torch

    if torch.cuda.is_initialized():  # never the first to touch CUDA
        torch.cuda.synchronize()
