"""Trace what this rank computes and communicates, and when: spans from PyTorch's profiler.

The profiler's record of a collective depends on the backend:

- With gloo it is `gloo:all_reduce` (or `gloo:send`, …), from the time when one of gloo's threads
  starts it until it is done. So it includes waiting for a late rank.
- `c10d::allreduce_` is the caller's call, which returns at once. It is not shown here. The profiler
  does not record how long the caller waits: that is a gap on the compute lane.
- On a GPU the kernels count, including NCCL's (`ncclDevKernel_AllReduce_…`). The CPU operators that
  launch kernels are on the "host" lane.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from helpers.measure.clock import wait_for_device
from helpers.measure.draw import seconds_text, table, text

KINDS = ("forward", "backward", "optimizer", "communication", "range")
LANES = ("ranges", "compute", "host", "communication")  # from the top
BACKWARD = "autograd::engine::evaluate_function"  # runs one node of the backward
# An operator is namespace::name. Events of autograd and torch only enclose operators.
OPERATOR = re.compile(r"(?!autograd::|torch::)\w+::\w")
COLLECTIVE = re.compile(r"c10d::|_c10d_functional::|record_param_comms")
BACKENDS = re.compile(r"(gloo|nccl|mpi|ucc|xccl):\w")
KINETO_CHATTER = b"USDT:"  # the profiler's library writes these lines at any log level


@dataclass(frozen=True, kw_only=True)
class Span:
    """One event of a trace.

    Attributes:
        name: the profiler's name: "aten::addmm", "gloo:all_reduce", or a `record_function`'s name.
        lane: "compute"; "communication"; "ranges" for `record_function`; "host" for CPU operators
            if a GPU computes.
        kind: "backward" (autograd's, including a checkpoint's recomputation), "optimizer",
            "forward" (all other computation), "communication" or "range".
        start: seconds since the trace began.
        seconds: duration.
    """

    name: str
    lane: str
    kind: str
    start: float
    seconds: float

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(kw_only=True)
class Trace:
    """What this process did, and when. A rank can return it, and it draws itself.

    It is the result of `trace`, or it collects blocks of your own: `Trace(began=time.time())`, then
    `with found.span(…)`.

    Attributes:
        spans: in the order of their starts; your own blocks, of their ends. Operators inside other
            operators are left out.
        began: seconds since 1970 by this machine's clock. It aligns the ranks of one machine. The
            clocks of several machines differ by more than the duration of a collective.
    """

    spans: list[Span] = field(default_factory=list)
    began: float = 0.0

    def of(self, *kinds: str) -> list[Span]:
        """The spans of these kinds or on these lanes."""
        return [span for span in self.spans if span.kind in kinds or span.lane in kinds]

    def busy(self, *kinds: str) -> float:
        """Seconds in which at least one span of these kinds ran."""
        return sum(end - start for start, end in union(self.of(*kinds)))

    def overlap(self, kind: str, other: str) -> float:
        """Seconds in which both kinds ran, for example communication behind the backward."""
        ours, theirs = union(self.of(kind)), union(self.of(other))
        return sum(max(0.0, min(b, d) - max(a, c)) for a, b in ours for c, d in theirs)

    def hidden(self) -> float:
        """The share of the communication's time in which this rank computed; 0 without messages.

        A GPU's kernels do run at the same time. On CPUs the messages need the cores too: what is
        drawn as overlap there slows the computation down.
        """
        busy = self.busy("communication")
        return self.overlap("communication", "compute") / busy if busy else 0.0

    @contextmanager
    def span(self, name: str, *, lane: str, kind: str) -> Iterator[None]:
        """Add the block as a span. Several threads may do so at the same time."""
        start = time.time() - self.began
        yield
        seconds = time.time() - self.began - start
        self.spans.append(Span(name=name, lane=lane, kind=kind, start=start, seconds=seconds))

    def _rows(self) -> dict[str, str]:
        present = [kind for kind in KINDS if self.of(kind)]
        return {
            kind: f"{len(self.of(kind))} in {seconds_text(self.busy(kind))}" for kind in present
        }

    def __repr__(self):
        return text("spans", self._rows())

    def _repr_html_(self):
        return table("spans", self._rows())

    def plot(self, **options):
        """Plot the lanes below each other. Returns a Picture. Options: see `draw`."""
        return draw([self], names=[""], **options)


def union(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Merge spans into (start, end) pairs that do not overlap: when at least one span ran."""
    merged: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span.end))
        else:
            merged.append((span.start, span.end))
    return merged


@contextmanager
def trace() -> Iterator[Trace]:
    """Profile the block in this process: `with trace() as found: …`.

    Inside the block, wait for every collective that it starts: the trace does not contain
    unfinished collectives. Before and after it, `trace` waits for CUDA's queue. The profiler slows
    down each small operator by microseconds. The first profile of a process needs longer to start;
    this time is before the block.

    Yields:
        A Trace. It stays empty until the block ends without an exception.

    Raises:
        RuntimeError: a profile is running already. A second one would end it.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if torch.autograd._profiler_enabled():
        raise RuntimeError("a profile is running already in this process: end it before a trace")
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():  # a measurement must not initialize CUDA
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities)
    found = Trace()
    wait_for_device()  # else the trace would also show kernels that were queued before the block
    with without_chatter():
        profiler.start()
    try:
        yield found
        wait_for_device()
    finally:
        with without_chatter():
            profiler.stop()
    found.spans, found.began = spans_of(profiler.profiler.kineto_results)


def draw(traces: Iterable[Trace], *, names=None, lanes=LANES, title: str = ""):
    """Draw several ranks' traces below each other on one time axis. Returns a Picture.

    Args:
        traces: one Trace per rank, for example the `Runs` of a function that returns its Trace.
        names: one name per trace; default rank 0, 1, …
        lanes: the lanes to show, from the top; lanes that are empty on all ranks are left out.
    """
    from helpers.plots.timeline import Box, timeline

    traces = list(traces)
    names = [f"rank {rank}" for rank in range(len(traces))] if names is None else list(names)
    present = [lane for lane in lanes if any(t.of(lane) for t in traces)]
    began = min((found.began for found in traces), default=0.0)
    offsets = [found.began - began for found in traces]
    pairs = list(zip(traces, offsets, strict=True))
    first = min((offset + s.start for t, offset in pairs for s in t.of(*present)), default=0.0)
    boxes = [
        Box(
            lane=f"{name} {span.lane}".strip(),
            start=1e3 * (offset + span.start - first),
            duration=1e3 * span.seconds,
            label=label_of(span),
            kind=span.kind,
        )
        for name, (found, offset) in zip(names, pairs, strict=True)
        for span in found.of(*present)
    ]
    order = [f"{name} {lane}".strip() for name in names for lane in present]
    return timeline(boxes, lanes=order, group=len(present), xlabel="milliseconds", title=title)


def label_of(span: Span) -> str:
    """The text in a span's box. A compute lane has too many operators for text."""
    if span.lane in ("compute", "host"):
        return ""
    return span.name.split(":")[-1] if span.lane == "communication" else span.name


# --- from the profiler's events -------------------------------------------------------------------


def spans_of(results) -> tuple[list[Span], float]:
    """Convert the profiler's raw results to spans, and the trace's start time in seconds."""
    events, origin = list(results.events()), results.trace_start_ns()
    device = [e for e in events if "CPU" not in str(e.device_type()) and not e.is_user_annotation()]
    host = [event for event in events if "CPU" in str(event.device_type())]
    kinds: dict[int, str] = {}  # an operator's correlation id -> its kind, for its kernels
    found = []
    for thread in {event.device_resource_id() for event in host}:
        own = [event for event in host if event.device_resource_id() == thread]
        found += thread_spans(own, kinds, bool(device))
    for event in device:
        communicates = event.name().lower().startswith(("nccl", "rccl"))
        kind = kinds.get(event.linked_correlation_id(), "forward")
        lane = "communication" if communicates else "compute"
        found.append((event, lane, "communication" if communicates else kind))
    spans = [
        Span(
            name=event.name(),
            lane=lane,
            kind=kind,
            start=(event.start_ns() - origin) * 1e-9,
            seconds=event.duration_ns() * 1e-9,
        )
        for event, lane, kind in found
    ]
    return sorted(spans, key=lambda span: span.start), origin * 1e-9


def thread_spans(events, kinds: dict[int, str], on_device: bool) -> Iterator[tuple]:
    """Yield (event, lane, kind) of one CPU thread, and record each operator's kind in `kinds`."""
    around: list = []  # the events that enclose the current event
    calls = any(COLLECTIVE.match(event.name()) for event in events)
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        around = [outer for outer in around if outer.end_ns() >= event.end_ns()]
        around = [outer for outer in around if outer.end_ns() > event.start_ns()]
        name, names = event.name(), [outer.name() for outer in around]
        if BACKENDS.match(name):
            if not on_device:  # on a GPU the event marks only the launch; the kernel has the time
                yield event, "communication", "communication"
                # On gloo's own thread, copies inside the event belong to the collective. On the
                # caller's thread they do not: it computes on while a send is under way.
                if not calls:
                    around.append(event)
            continue
        kind = "forward"
        if any(outer.startswith("Optimizer.") for outer in names):
            kind = "optimizer"
        elif any(outer.startswith(BACKWARD) for outer in names):
            kind = "backward"
        kinds[event.correlation_id()] = kind
        inside = any(OPERATOR.match(outer) or BACKENDS.match(outer) for outer in names)
        if event.is_user_annotation():
            yield event, "ranges", "range"
        elif OPERATOR.match(name) and not COLLECTIVE.match(name) and not inside:
            yield event, "host" if on_device else "compute", kind
        around.append(event)


@contextmanager
def without_chatter():
    """Remove the profiler's own lines from stderr, and pass on all other lines.

    Compiled code writes these lines at any log level, so the file descriptor itself is redirected,
    but only while a profile starts or stops.
    """
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            for line in kept:
                if not line.startswith(KINETO_CHATTER):
                    os.write(2, line)
