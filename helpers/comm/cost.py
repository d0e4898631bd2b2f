"""What a collective costs: bytes by formula, seconds by Hockney's model fitted to measured times.

T = messages · alpha + bytes · beta (Hockney 1994), with alpha seconds a message and beta seconds a
byte. `messages` and `bytes` are those of the slowest rank, by the algorithm (Thakur, Rabenseifner
and Gropp 2005, "Optimization of Collective Communication Operations in MPICH", sections 3 and 4).
The time of the additions in a reduction, their gamma, is part of the fitted beta.

Letters: S the payload in bytes, that is the whole buffer that the ranks gather, reduce, scatter or
exchange parts of; N the ranks of the group.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from helpers.measure.clock import time_of
from helpers.measure.draw import seconds_text, table, text

CALLS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
)


def sent(
    call: str, payload: int, ranks: int, *, rank: int = 0, root: int = 0, backend: str = "gloo"
) -> float:
    """Bytes that the algorithm makes `rank` send, headers not counted.

    With gloo: rings for all_reduce, all_gather and the first half of reduce; a binomial tree for
    broadcast; reduce_scatter is an all-reduce of which each rank keeps its part, twice what is
    needed. With another backend rings throughout, as NCCL's for large payloads: by formula alone.

    Args:
        call: one of CALLS.
        payload: S in bytes: of all_gather the gathered result, of reduce_scatter the whole input,
            of gather and scatter all parts together, of all_to_all what one rank holds.
        ranks: N.
        rank, root: in the group; of send, `rank` is the sender.

    Raises:
        ValueError: no such call.
    """
    share = payload / ranks
    last = ranks - 1
    match call:
        case "all_reduce":
            return 2 * last * share
        case "reduce_scatter":
            return (2 if backend == "gloo" else 1) * last * share
        case "all_gather" | "all_to_all":
            return last * share
        case "broadcast" if backend == "gloo":
            return payload * children((rank - root) % ranks, ranks)
        case "broadcast":  # a chain from the root on
            return 0.0 if (rank - root) % ranks == last else float(payload)
        case "reduce" if backend == "gloo":  # a ring's reduce-scatter, then each part to the root
            return last * share + (0 if rank == root else share)
        case "reduce":
            return 0.0 if rank == root else float(payload)
        case "gather":
            return 0.0 if rank == root else share
        case "scatter":
            return last * share if rank == root else 0.0
        case "send":
            return float(payload)
        case "recv" | "barrier":
            return 0.0
    raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")


def children(place: int, ranks: int) -> int:
    """How many ranks the rank at `place` (the root is 0) sends to in a binomial tree.

    In step i the 2^i ranks that have the data each send to the rank 2^i further.
    """
    return sum(place < 2**i < ranks - place for i in range((ranks - 1).bit_length()))


def path(call: str, payload: int, ranks: int, *, backend: str = "gloo") -> tuple[int, float]:
    """Messages one after another, and bytes, on the slowest rank's way through the algorithm.

    A broadcast's tree takes ceil(log2 N) steps of the whole payload. A send is one message.
    """
    last, share = ranks - 1, payload / ranks
    if call in ("send", "recv"):
        return 1, float(payload)
    if call in ("broadcast", "barrier"):
        steps = last.bit_length()
        return steps, float(payload * steps) if call == "broadcast" else 0.0
    whole = {"all_reduce": 2, "reduce": 2, "reduce_scatter": 2 if backend == "gloo" else 1}
    if call not in CALLS:
        raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")
    return whole.get(call, 1) * last, whole.get(call, 1) * last * share


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measured time: `seconds` of a call with `payload` bytes on `ranks`, on the slowest."""

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
    """Time calls on the ranks that this runs on: `launch(measure, workers=4)[0]`.

    Where ranks are more than cores they take turns, and alpha grows with them, which the model does
    not know: on a laptop predict other sizes rather than other worlds.

    Args:
        sizes: payloads in bytes, rounded up to what the ranks divide in floats.
        repeats: times taken, each after a barrier; the median counts, of the slowest rank.
        inner: calls in a repeat, back to back.
        make: (call, payload, device) -> what is timed; by default `torch_call`.

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
    """Payloads one after another in what is timed: a message goes there and back."""
    return 2 if call == "send" else 1


def torch_call(call: str, payload: int, device) -> Callable[[], object]:
    """PyTorch's own call on a payload of float32; for "send", to rank 1 and back to rank 0."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(payload // 4, device=device)
    part = torch.zeros(payload // 4 // ranks, device=device)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def there_and_back():
        for source in (0, 1):
            if rank == source:
                dist.send(whole, 1 - source)
            elif rank == 1 - source:
                dist.recv(whole, source)

    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: gather(whole, part),
        "reduce_scatter": lambda: scatter(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "send": there_and_back,
        "barrier": dist.barrier,
    }[call]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What `fit` found: alpha in seconds a message, beta in seconds a byte.

    Attributes:
        samples: those that it was fitted to.
    """

    alpha: float
    beta: float
    samples: tuple[Sample, ...]

    def predict(self, call: str, payload: int, ranks: int, backend: str = "gloo") -> float:
        """Seconds of a call, of any size and on any number of ranks."""
        messages, size = path(call, payload, ranks, backend=backend)
        return messages * self.alpha + size * self.beta

    def errors(self, samples: Iterable[Sample] | None = None) -> list[float]:
        """Predicted over measured, less 1, for each sample; by default those of the fit.

        Only samples that were not fitted tell how well it predicts.
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
        """Measured times as dots (`others`, not fitted, hollow), predicted ones as lines."""
        from helpers.plots.picture import Picture
        from helpers.plots.style import RANK_COLORS

        figure = Picture(figsize=(5.2, 3.4), dpi=80, layout="constrained")
        axes = figure.subplots()
        kinds: dict[tuple, list] = {}
        for fitted, samples in ((True, self.samples), (False, others)):
            for s in samples:
                kinds.setdefault((s.call, s.ranks, s.backend), []).append((s, fitted))
        for number, ((call, ranks, backend), marked) in enumerate(kinds.items()):
            color = RANK_COLORS[number % len(RANK_COLORS)]
            sizes = sorted(s.payload for s, _ in marked)
            line = [self.predict(call, size, ranks, backend) for size in sizes]
            axes.plot(sizes, line, color=color, label=f"{call}, {ranks} ranks")
            for s, fitted in marked:
                face = color if fitted else "none"
                axes.plot(s.payload, s.seconds, "o", color=color, markerfacecolor=face)
        # the dots have no colour of their own in the legend: it says what full and hollow mean
        style = {"ls": "none", "marker": "o", "color": "#666666"}
        axes.plot([], [], label="measured, fitted", **style)
        if any(not fitted for marked in kinds.values() for _, fitted in marked):
            axes.plot([], [], markerfacecolor="none", label="measured, not fitted", **style)
        axes.set(xscale="log", yscale="log", xlabel="payload (bytes)", ylabel="seconds")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
        return figure


def fit(samples: Iterable[Sample]) -> Fit:
    """Alpha and beta, neither below 0, by robust least squares in relative error.

    Relative, since times range over decades and the large would drown the small. Robust, since a
    machine's disturbances make some times far too long: samples far off are weighted down (Huber
    1964, by iteratively reweighted least squares). Fit each call by itself where their betas differ
    (a reduction adds, a broadcast does not).

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
    """Least squares in two unknowns, with what would be negative left out."""
    norm = np.maximum(np.linalg.norm(design, axis=0), 1e-300)  # seconds and bytes, made alike
    found = np.linalg.lstsq(design / norm, target, rcond=None)[0] / norm
    if found.min() >= 0:
        return found
    alone = np.maximum(design.T @ target / norm**2, 0)
    candidates = [np.array([alone[0], 0]), np.array([0, alone[1]])]
    return min(candidates, key=lambda x: np.linalg.norm(design @ x - target))
