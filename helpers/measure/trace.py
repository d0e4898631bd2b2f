"""What this rank computed and communicated, and when: plain spans from PyTorch's profiler.

What the profiler records of a collective depends on the backend. Of gloo it is `gloo:all_reduce`
(or `gloo:send`, …), from when one of gloo's own threads takes it up until it is done; so waiting
for a late rank is part of it. `c10d::allreduce_` is the call that hands it over, on the caller's
thread, and is over at once: it is not shown here. Nor is the caller's waiting, which the profiler
does not record: it is the gap on the compute lane. On a GPU the kernels count, NCCL's among them
(`ncclDevKernel_AllReduce_…`), and what the CPU does to start them stands on a lane of its own.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from helpers.measure.draw import seconds_text, table, text

KINDS = ("forward", "backward", "optimizer", "communication", "range")
LANES = ("ranges", "compute", "host", "communication")  # from the top
BACKWARD = "autograd::engine::evaluate_function"  # what runs one node of the backward
# An operator is namespace::name. What only stands around operators is looked through.
OPERATOR = re.compile(r"(?!autograd::|torch::)\w+::\w")
COLLECTIVE = re.compile(r"c10d::|_c10d_functional::|record_param_comms")
BACKENDS = re.compile(r"(gloo|nccl|mpi|ucc|xccl):\w")
KINETO_CHATTER = b"USDT:"  # lines that the profiler's library writes at any log level


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that ran.

    Attributes:
        name: the profiler's: "aten::addmm", "gloo:all_reduce", or that of a `record_function`.
        lane: "compute"; "communication"; "ranges" for `record_function`; "host" for what the CPU
            did where a GPU computes.
        kind: "forward" (all computation that is neither of the next two), "backward" (of autograd,
            a checkpoint's recomputation included), "optimizer", "communication" or "range".
        start: seconds since the trace began.
        seconds: how long.
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
    """What `trace` found on this process. Travels back from a rank, and draws itself.

    Attributes:
        spans: in the order of their starts. Of operators inside operators only the outermost.
        began: seconds since 1970 by this machine's clock: lays the ranks of a machine side by
            side. The clocks of several machines differ, by more than a collective takes.
    """

    spans: list[Span] = field(default_factory=list)
    began: float = 0.0

    def of(self, *kinds: str) -> list[Span]:
        """The spans of these kinds, or on these lanes."""
        return [span for span in self.spans if span.kind in kinds or span.lane in kinds]

    def busy(self, *kinds: str) -> float:
        """Seconds in which at least one span of these kinds ran."""
        return sum(end - start for start, end in union(self.of(*kinds)))

    def overlap(self, kind: str, other: str) -> float:
        """Seconds in which both ran: communication hidden behind the backward, say."""
        ours, theirs = union(self.of(kind)), union(self.of(other))
        return sum(max(0.0, min(b, d) - max(a, c)) for a, b in ours for c, d in theirs)

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
        """Its lanes below each other. Returns a Picture. Options: see `draw`."""
        return draw([self], names=[""], **options)


def union(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """The times in which at least one of them ran, as (start, end) that do not overlap."""
    merged: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span.end))
        else:
            merged.append((span.start, span.end))
    return merged


@contextmanager
def trace() -> Iterator[Trace]:
    """Profile what the block does on this process: `with trace() as found: …; return found`.

    Wait inside the block for what it started: an unfinished collective is in no trace. CUDA's
    queue is waited for at the end. The profiler slows small operators down, by microseconds each;
    the first profile of a process takes longer to start, before the block.

    Yields:
        a Trace, empty until the block has ended without an exception.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():  # never the first to touch CUDA
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities)
    found = Trace()
    with without_chatter():
        profiler.start()
    try:
        yield found
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    finally:
        with without_chatter():
            profiler.stop()
    found.spans, found.began = spans_of(profiler.profiler.kineto_results)


def draw(traces: Iterable[Trace], *, names=None, lanes=LANES, title: str = ""):
    """Several ranks' traces below each other on one axis of time. Returns a Picture.

    Args:
        traces: by rank: the `Runs` of functions that return their Trace, say.
        names: of each; by default rank 0, 1, …
        lanes: which of the lanes to show; those that are empty on all ranks are left out.
    """
    from helpers.plots.timeline import Box, timeline

    traces = list(traces)
    names = [f"rank {rank}" for rank in range(len(traces))] if names is None else list(names)
    present = [lane for lane in LANES if lane in lanes and any(t.of(lane) for t in traces)]
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
    """What is written in its box; the operators of a compute lane are too many for words."""
    return {"communication": span.name.split(":")[-1], "ranges": span.name}.get(span.lane, "")


# --- from the profiler's events -------------------------------------------------------------------


def spans_of(results) -> tuple[list[Span], float]:
    """Spans from the profiler's raw results, and the time in seconds that they count from."""
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
    """(event, lane, kind) of what one thread of the CPU did; notes each operator's kind."""
    around: list = []  # the events that the present one lies in
    calls = any(COLLECTIVE.match(event.name()) for event in events)
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        around = [outer for outer in around if outer.end_ns() >= event.end_ns()]
        around = [outer for outer in around if outer.end_ns() > event.start_ns()]
        name, names = event.name(), [outer.name() for outer in around]
        if BACKENDS.match(name):
            if not on_device:  # there it marks the launch alone; the kernel is the time
                yield event, "communication", "communication"
                # What a thread of gloo copies meanwhile belongs to it. The caller's own thread
                # goes on meanwhile: a send is noted there, and covers what happens under it.
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
    """Keeps the profiler's own lines from stderr, and passes on what else is written there.

    They are written by compiled code at any log level, so the file descriptor itself is turned
    away; starting and stopping a profile is the only thing done meanwhile.
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
