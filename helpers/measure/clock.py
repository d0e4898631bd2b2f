"""Time a call: medians of wall time and CPU time, after a warm-up."""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from helpers.measure.draw import seconds_text, table, text


@dataclass(frozen=True)
class Timing:
    """The result of `time_of`.

    Attributes:
        name: of the function.
        wall: seconds of wall time per call, one value per repeat, in order.
        cpu: seconds of CPU time per call, of all threads of this process, one value per repeat.
            It exceeds the wall time if several threads work, and is less if the call waits.
    """

    name: str
    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median wall time. A few disturbed repeats do not change it much."""
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
            "half of the repeats within": f"{low} … {high}",
            "CPU time, median": seconds_text(self.cpu_seconds),
            "repeats": str(len(self.wall)),
        }

    def __repr__(self):
        return text(self.name, self._rows())

    def _repr_html_(self):
        return table(self.name, self._rows())

    def plot(self):
        """Plot each repeat as a dot, in order, and the median as a line. Returns a Picture."""
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
        axes.set(title=self.name, xlabel="repeat", ylabel="milliseconds per call", ylim=(0, None))
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

    The counts are fixed and do not depend on the clock. So all ranks make the same number of calls,
    and `call` may be a collective.

    Args:
        call: a function without arguments. If CUDA is in use, each repeat waits for queued work.
        repeats: the number of times measured; the medians are over them.
        warmup: calls before the first repeat, not timed: they fill caches, open connections,
            compile.
        calls: calls per repeat, for a call that is too short for the clock (about 1e-6 seconds).
            A repeat's time is divided by it.

    Raises:
        ValueError: `repeats` or `calls` is below 1, or `warmup` below 0.
    """
    if repeats < 1 or calls < 1 or warmup < 0:
        raise ValueError(f"{repeats=} and {calls=} must be at least 1, {warmup=} at least 0")
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


class Moments:
    """Moments in the work of a device, on one clock with the other processes of the machine.

    A call for a GPU returns before the GPU has worked. So there a moment is an event in the GPU's
    queue: `mark` does not wait for it, and `seconds` does.
    """

    def __init__(self, device):
        self.device, self.on_gpu = device, device.type == "cuda"
        if self.on_gpu:
            self.first = self.mark()
            self.first.synchronize()
        self.began = time.perf_counter()

    def mark(self):
        """Note this moment. Its value is for `seconds` only."""
        if not self.on_gpu:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))  # else the current GPU's
        return event

    def seconds(self, moment) -> float:
        """Return when it was, in seconds of the machine's monotonic clock."""
        if not self.on_gpu:
            return moment
        moment.synchronize()
        return self.began + self.first.elapsed_time(moment) / 1e3


def current_gpu(device):
    """Make a GPU the current one in a block. On the CPU this changes nothing.

    Launches, waits and events that name no GPU are the current GPU's.
    """
    import torch

    device = torch.device(device)
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def wait_for_device():
    """Wait until the current GPU has finished its queued work: a CUDA call returns before that."""
    import torch

    if torch.cuda.is_initialized():  # a measurement must not initialize CUDA
        torch.cuda.synchronize()
