"""How long a collective takes: Hockney's model, fitted to measured times.

T = messages · alpha + bytes · beta (Hockney 1994), with alpha in seconds per message and beta in
seconds per byte. `helpers.comm.volume.path` gives the messages and bytes of the slowest rank. The
fitted beta contains the time of a reduction's additions, which other authors call gamma.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from helpers.comm.transport import all_gather_single, reduce_scatter_single
from helpers.comm.volume import path
from helpers.measure.clock import time_of
from helpers.measure.draw import seconds_text, table, text


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measured time: a call with `payload` bytes takes `seconds` on the slowest rank."""

    call: str
    ranks: int
    payload: int
    seconds: float
    backend: str = "gloo"

    @property
    def path(self) -> tuple[int, float]:
        return path(self.call, self.payload, self.ranks, backend=self.backend)


def measure(
    worker,
    *,
    calls: Sequence[str] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"),
    sizes: Sequence[int] = tuple(4**k for k in range(5, 12)),
    repeats: int = 15,
    inner: int = 4,
    make: Callable[[str, int, torch.device], Callable[[], object]] | None = None,
) -> list[Sample]:
    """Time calls on the running ranks: `launch(measure, workers=4)[0]`.

    With more ranks than cores, the ranks take turns, and alpha grows with their number. The model
    ignores this effect. On a laptop, predict other sizes rather than other numbers of ranks.

    Args:
        sizes: payloads in bytes, rounded up to whole floats for each rank.
        repeats: measurements of a call, each after a barrier. The sample is the median on the
            slowest rank.
        inner: calls in one measurement, back to back.
        make: (call, payload, device) -> the function to time; the default is `torch_call`.

    Returns:
        The samples, the same on every rank.
    """
    ranks, step = worker.world_size, 4 * worker.world_size
    kinds = [(call, -(-size // step) * step) for call in calls for size in sizes]
    seconds = []
    for call, payload in kinds:
        timed = (make or torch_call)(call, payload, worker.device)
        timed()
        times = []
        for _ in range(repeats):
            dist.barrier()
            times.append(time_of(timed, repeats=1, warmup=0, calls=inner).seconds)
        seconds.append(statistics.median(times))
    slowest = torch.tensor(seconds, dtype=torch.float64, device=worker.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    backend = dist.get_backend()
    return [
        Sample(call=call, ranks=ranks, payload=payload, seconds=t / trips(call), backend=backend)
        for (call, payload), t in zip(kinds, slowest.tolist(), strict=True)
    ]


def trips(call: str) -> int:
    """Payloads one after another in a timed call: a send is timed there and back."""
    return 2 if call == "send" else 1


def torch_call(call: str, payload: int, device) -> Callable[[], object]:
    """PyTorch's own call on a payload of float32; for "send", to rank 1 and back to rank 0."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(payload // 4, device=device)
    part = torch.zeros(payload // 4 // ranks, device=device)

    def there_and_back():
        for source in (0, 1):
            if rank == source:
                dist.send(whole, 1 - source)
            elif rank == 1 - source:
                dist.recv(whole, source)

    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: all_gather_single(whole, part),
        "reduce_scatter": lambda: reduce_scatter_single(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "send": there_and_back,
        "barrier": dist.barrier,
    }[call]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of `fit`: alpha in seconds per message, beta in seconds per byte.

    Attributes:
        samples: the fitted samples.
    """

    alpha: float
    beta: float
    samples: tuple[Sample, ...]

    def predict(self, call: str, payload: int, ranks: int, backend: str = "gloo") -> float:
        """Seconds of a call, of any size and on any number of ranks."""
        messages, size = path(call, payload, ranks, backend=backend)
        return messages * self.alpha + size * self.beta

    def errors(self, samples: Iterable[Sample] | None = None) -> list[float]:
        """Predicted / measured - 1 for each sample; the default is the fitted samples.

        Only samples outside the fit show how well the model predicts.
        """
        samples = self.samples if samples is None else samples
        return [
            self.predict(s.call, s.payload, s.ranks, s.backend) / s.seconds - 1 for s in samples
        ]

    def _rows(self) -> dict[str, str]:
        errors = [abs(e) for e in self.errors()]
        return {
            "alpha": f"{seconds_text(self.alpha)} a message",
            "1/beta": f"{1 / self.beta:.3g} bytes/s" if self.beta else "without limit",
            "median error of the fit": f"{statistics.median(errors):.0%}",
            "largest error of the fit": f"{max(errors):.0%}",
        }

    def __repr__(self):
        return text(f"alpha and beta of {len(self.samples)} samples", self._rows())

    def _repr_html_(self):
        return table(f"alpha and beta of {len(self.samples)} samples", self._rows())

    def plot(self, others: Iterable[Sample] = ()):
        """Plot measured times as dots, `others` as hollow dots, and predictions as lines."""
        from helpers.plots.agreement import costs

        fitted, hollow, predicted = {}, {}, {}
        for points, samples in ((fitted, self.samples), (hollow, others)):
            for s in samples:
                name = f"{s.call}, {s.ranks} ranks"
                points.setdefault(name, []).append((s.payload, s.seconds))
                line = (s.payload, self.predict(s.call, s.payload, s.ranks, s.backend))
                predicted.setdefault(name, []).append(line)
        return costs({name: sorted(line) for name, line in predicted.items()}, fitted, hollow)


def fit(samples: Iterable[Sample]) -> Fit:
    """Fit alpha and beta, neither below 0, by robust least squares in relative error.

    The error is relative because times range over decades: the large times would hide the small
    ones. The fit is robust because other work on the machine makes some times far too long. Samples
    far from the fit get a small weight (Huber 1964, by iteratively reweighted least squares). Fit
    each call alone if their betas differ: a reduction adds numbers, a broadcast does not.

    Raises:
        ValueError: fewer than two samples, or a time that is not positive.
    """
    samples = tuple(samples)
    if len(samples) < 2 or min(s.seconds for s in samples) <= 0:
        raise ValueError("a fit takes two samples or more, with times above 0")
    design = np.array([s.path for s in samples]) / np.array([[s.seconds] for s in samples])
    weights = np.ones(len(samples))
    for _ in range(50):
        found = nonnegative(design * weights[:, None], weights)
        off = np.abs(design @ found - 1)
        scale = max(1.4826 * np.median(off), 1e-9)  # of a normal distribution, from its median
        weights = np.sqrt(np.minimum(1, 1.345 * scale / np.maximum(off, 1e-12)))
    return Fit(alpha=float(found[0]), beta=float(found[1]), samples=samples)


def nonnegative(design, target):
    """Least squares in two unknowns; a negative unknown is set to 0."""
    norm = np.maximum(np.linalg.norm(design, axis=0), 1e-300)  # seconds and bytes, made alike
    found = np.linalg.lstsq(design / norm, target, rcond=None)[0] / norm
    if found.min() >= 0:
        return found
    alone = np.maximum(design.T @ target / norm**2, 0)
    candidates = [np.array([alone[0], 0]), np.array([0, alone[1]])]
    return min(candidates, key=lambda x: np.linalg.norm(design @ x - target))
