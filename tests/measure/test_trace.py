"""Each span is on the right lane, of the right kind, at the right time, and there once."""

import os
import pickle
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.profiler import record_function

from helpers import launch
from helpers.measure.trace import Span, Trace, draw, label_of, spans_of, trace, without_chatter
from tests.cuda import Cuda

SLEEP = 0.05  # seconds by which a rank is late
CLOCKS = 1e-3  # seconds by which two processes' clocks may differ


def names(spans):
    return [span.name for span in spans]


def step():
    """Trace a step with known operators, after a first step without a trace."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace() as found:
        with record_function("mine"):
            loss = model(torch.ones(4, 8)).sum()
            loss.backward()
        optimizer.step()
    return found


def test_forward_backward_optimizer_and_ranges():
    found = step()
    assert "aten::linear" in names(found.of("forward"))
    assert "aten::addmm" not in names(found.of("forward"))  # it runs inside linear
    assert "aten::mm" in names(found.of("backward"))
    assert "aten::linear" not in names(found.of("backward"))
    assert not any("autograd" in name for name in names(found.of("compute")))
    assert any("add" in name for name in names(found.of("optimizer")))
    assert "mine" in names(found.of("range"))
    assert not found.of("communication")
    last_forward = max(s.end for s in found.of("forward") if s.name == "aten::linear")
    assert last_forward <= min(s.start for s in found.of("backward"))
    mine = next(s for s in found.of("range") if s.name == "mine")
    for span in found.of("backward"):
        assert mine.start <= span.start
        assert span.end <= mine.end


def test_operators_of_a_lane_never_overlap():
    spans = step().of("compute")
    for one, two in pairwise(spans):
        assert one.end <= two.start + 1e-9


def test_it_is_small_and_travels():
    found = step()
    assert pickle.loads(pickle.dumps(found)) == found
    assert len(pickle.dumps(found)) < 150 * len(found.spans) + 1000


def fail():
    torch.ones(2).sum()
    raise ValueError("here")


def test_nothing_is_there_after_an_exception_and_the_next_one_works():
    with pytest.raises(ValueError, match="here"), trace() as found:
        fail()
    assert found.spans == []
    with pytest.raises(RuntimeError, match="already"), trace(), trace():
        pass
    assert step().spans


def collectives(worker):
    """Rank 1 is late for each collective. Ranks compute while an asynchronous collective runs."""
    tensor = torch.ones(1000)
    for _ in range(2):  # open the connections first
        dist.all_reduce(tensor)
    peer = 1 - worker.rank
    dist.send(tensor, peer) if worker.rank == 0 else dist.recv(tensor, peer)
    with trace() as found:
        if worker.rank == 1:
            time.sleep(SLEEP)
        request = dist.all_reduce(tensor, async_op=True)
        torch.mm(torch.ones(4, 4), torch.ones(4, 4))
        request.wait()
        dist.broadcast(tensor, 0)
        request = dist.isend(tensor, peer) if worker.rank == 0 else dist.irecv(tensor, peer)
        torch.mv(torch.ones(4, 4), torch.ones(4))
        request.wait()
        dist.all_gather([torch.empty(1000) for _ in range(2)], tensor)
    return found


def test_collectives_on_ranks():
    runs = launch(collectives, workers=2, device="cpu")
    message = ["gloo:send", "gloo:recv"]
    for rank, found in enumerate(runs):
        expected = ["gloo:all_reduce", "gloo:broadcast", message[rank], "gloo:all_gather"]
        assert names(found.of("communication")) == expected
        assert {"aten::mm", "aten::mv"} <= set(names(found.of("compute")))
        # Copies on gloo's threads are not computation.
        assert "aten::view" not in names(found.of("compute"))
        assert not any("c10d" in name for name in names(found.spans))
    # The first rank waited for the late rank. The two clocks differ by far less than CLOCKS.
    early, late = (found.of("communication")[0] for found in runs)
    assert runs[0].began + early.end >= runs[1].began + late.start - CLOCKS


def backward_waits(worker):
    """The backward itself waits for an all-reduce, as in tensor parallelism."""

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if worker.rank == 1:
                time.sleep(SLEEP)
            dist.all_reduce(grad := grad.clone())
            return grad

    x = torch.ones(4, requires_grad=True)
    Reduce.apply(x).sum().backward()
    with trace() as found:
        Reduce.apply(x).sum().backward()
    return found


def test_waiting_inside_of_a_backward_is_no_computation():
    runs = launch(backward_waits, workers=2, device="cpu")
    for found in runs:
        (wait,) = found.of("communication")
        assert "aten::clone" in names(found.of("backward"))
        for done in found.of("compute"):
            assert done.end <= wait.start or done.start >= wait.start


def test_the_profiler_is_silent_and_the_program_is_not():
    code = (
        "import os, torch\n"
        "from helpers.measure.trace import trace, without_chatter\n"
        "with trace(): torch.ones(1)\n"
        "with without_chatter(): os.write(2, b'kept\\n'); os.write(2, b'USDT:gone\\n')\n"
        "os.write(2, b'after\\n')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert run.stderr == b"kept\nafter\n"


def test_stderr_comes_back_after_an_exception():
    before, descriptors = os.fstat(2), len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="here"), without_chatter():
        fail()
    assert os.path.samestat(before, os.fstat(2))
    assert len(os.listdir("/proc/self/fd")) == descriptors


def span(kind, start, seconds, lane="compute"):
    return Span(name=kind, lane=lane, kind=kind, start=start, seconds=seconds)


def test_busy_and_overlap():
    found = Trace(
        spans=[
            span("backward", 0, 4),
            span("backward", 6, 2),
            span("communication", 3, 4),  # overlaps each of the two by 1 s
            span("communication", 5, 1),  # inside the previous span
            span("communication", 20, 1),
        ]
    )
    assert found.busy("backward") == 6
    assert found.busy("communication") == 5
    assert found.overlap("communication", "backward") == 2
    assert found.overlap("backward", "communication") == 2
    assert found.overlap("communication", "forward") == 0


def test_how_much_of_the_messages_the_computation_hides():
    """By hand: 10 s of messages; computation runs in 2 + 1 + 0.5 s of them."""
    message = partial(span, "communication", lane="communication")
    found = Trace(
        spans=[
            span("forward", 0, 4),
            message(2, 4),  # hidden from 2 to 4, and from 5 to 6
            span("backward", 5, 2.5),
            message(7, 6),  # hidden from 7 to 7.5
            message(8, 1),  # beside the message before: counts once
            span("mine", 0, 20, lane="ranges"),  # encloses operators, and computes nothing
            span("optimizer", 13, 1),  # begins when the last message ends
        ]
    )
    assert found.busy("communication") == 10
    assert found.hidden() == pytest.approx(3.5 / 10)
    assert Trace(spans=found.of("compute")).hidden() == 0
    assert Trace(spans=found.of("communication")).hidden() == 0


class Event(SimpleNamespace):
    """Imitate the profiler's raw event: its attributes are calls. Times are in nanoseconds."""

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        return value if name.startswith("__") else lambda: value


def event(name, start, end, *, device="CPU", thread=1, note=False, correlation=0, linked=0):
    return Event(
        name=name,
        start_ns=start,
        end_ns=end,
        duration_ns=end - start,
        device_type=f"DeviceType.{device}",
        device_resource_id=thread,
        is_user_annotation=note,
        correlation_id=correlation,
        linked_correlation_id=linked,
    )


def test_on_a_gpu_the_kernels_are_the_time():
    node = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        event("aten::mm", 1000, 1010, correlation=7),
        event("nccl:all_reduce", 1010, 1012, note=True),
        event(node, 1020, 1040, thread=2),
        event("aten::mm", 1021, 1030, thread=2, correlation=8),
        event("sgemm", 1005, 1100, device="CUDA", thread=7, linked=7),
        event("sgemm", 1100, 1300, device="CUDA", thread=7, linked=8),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1100, 1500, device="CUDA", thread=8),
        event("nccl:all_reduce", 1100, 1500, device="CUDA", thread=8, note=True),
    ]
    spans, began = spans_of(SimpleNamespace(events=lambda: events, trace_start_ns=lambda: 1000))
    found = [(s.name, s.lane, s.kind, round(s.start * 1e9), round(s.seconds * 1e9)) for s in spans]
    assert sorted(found) == [
        ("aten::mm", "host", "backward", 21, 9),
        ("aten::mm", "host", "forward", 0, 10),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication", "communication", 100, 400),
        ("sgemm", "compute", "backward", 100, 200),
        ("sgemm", "compute", "forward", 5, 95),
    ]
    assert began == pytest.approx(1000e-9)


def test_operators_that_begin_or_end_together():
    """The longer of two that begin together encloses the other; one may follow another at once."""
    events = [
        event("aten::addmm", 1000, 1050),
        event("aten::linear", 1000, 1100),
        event("aten::view", 1090, 1100),
        event("aten::relu", 1100, 1100),  # too short for the clock
        event("aten::mm", 1101, 1200),
        event("aten::sin", 1040, 1060, thread=2),  # of another thread
    ]
    spans, _ = spans_of(SimpleNamespace(events=lambda: events, trace_start_ns=lambda: 1000))
    assert sorted(names(spans)) == ["aten::linear", "aten::mm", "aten::relu", "aten::sin"]
    assert {(one.lane, one.kind) for one in spans} == {("compute", "forward")}


def test_ranks_are_drawn_on_one_axis():
    one = Trace(began=1.7e9, spans=[span("forward", 0.001, 0.002)])
    two = Trace(
        began=1.7e9 + 0.010,
        spans=[span("forward", 0, 0.002), span("communication", 0.005, 0.1, "communication")],
    )
    axes = draw([one, two]).axes[0]
    lanes = [label.get_text() for label in axes.get_yticklabels()]
    assert lanes == [
        "rank 0 compute",
        "rank 0 communication",
        "rank 1 compute",
        "rank 1 communication",
    ]
    boxes = {}
    for collection in axes.collections:
        (left, bottom), (right, top) = collection.get_paths()[0].get_extents().get_points()
        boxes[round((bottom + top) / 2)] = (round(left, 3), round(right, 3))
    assert boxes == {
        0: (0, 2),
        2: (9, 11),
        3: (14, 114),
    }  # milliseconds, as exact as float64 is at 1e9 s
    assert axes.get_xlim()[0] == 0  # exactly 0: otherwise the axis does not show it
    assert draw([two, one]).axes[0].get_xlim() == axes.get_xlim()  # whichever began first
    only = draw([one, two], lanes=["compute"], names=["a", "b"]).axes[0]
    assert [label.get_text() for label in only.get_yticklabels()] == ["a compute", "b compute"]


def test_lanes_and_title_can_be_chosen():
    found = Trace(
        spans=[
            span("range", 0, 5, "ranges"),
            span("forward", 1, 2),
            span("communication", 2, 2, "communication"),
        ]
    )

    def lanes(**options):
        axes = found.plot(**options).axes[0]
        return [label.get_text() for label in axes.get_yticklabels()]

    assert lanes() == ["ranges", "compute", "communication"]
    assert lanes(lanes=["communication", "ranges"]) == ["communication", "ranges"]
    figure = draw([found], title="a step")
    assert "a step" in figure.alt
    axes = figure.axes[0]
    assert axes.get_xlabel() == "milliseconds"
    assert [label.get_text() for label in axes.get_yticklabels()][1] == "rank 0 compute"
    rows = [line.split("  ") for line in repr(found).splitlines()[1:]]
    assert [(row[1], row[-1]) for row in rows] == [
        ("forward", "1 in 2 s"),
        ("communication", "1 in 2 s"),
        ("range", "1 in 5 s"),
    ]


def test_what_stands_in_a_box():
    """Of a collective its short name; operators are too many for text."""
    some = [
        span("communication", 0, 1, "communication"),
        Span(
            name="gloo:all_reduce", lane="communication", kind="communication", start=0, seconds=1
        ),
        Span(name="my range", lane="ranges", kind="range", start=0, seconds=1),
        Span(name="aten::mm", lane="compute", kind="forward", start=0, seconds=1),
        Span(name="aten::mm", lane="host", kind="forward", start=0, seconds=1),
        Span(name="block 3", lane="read", kind="communication", start=0, seconds=1),
    ]
    labels = ["communication", "all_reduce", "my range", "", "", "block 3"]
    assert [label_of(one) for one in some] == labels


def test_blocks_of_your_own_on_lanes_of_your_own():
    found = Trace(began=time.time())
    met = threading.Barrier(2)

    def work(lane):
        with found.span("1", lane=lane, kind="forward"):
            met.wait(10)  # both are inside their spans now

    threads = [threading.Thread(target=work, args=(lane,)) for lane in ("read", "write")]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [(span.name, span.kind) for span in found.spans] == 2 * [("1", "forward")]
    assert found.overlap("read", "write") > 0
    assert 0 <= min(span.start for span in found.spans) < 5
    axes = found.plot(lanes=["write", "read"]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["write", "read"]


def test_it_draws_itself():
    found = step()
    assert "backward" in repr(found)
    assert "<table>" in found._repr_html_()
    assert found.plot().axes[0].collections
    assert "communication" not in repr(found)


@pytest.mark.parametrize("used", [False, True])
def test_a_gpu_in_use_is_profiled_and_waited_for(monkeypatch, used):
    done = []

    class Profiler:
        def __init__(self, activities):
            done.append([one.name for one in activities])
            results = SimpleNamespace(events=lambda: [], trace_start_ns=lambda: 3_000_000_000)
            self.profiler = SimpleNamespace(kineto_results=results)

        def start(self):
            done.append("start")

        def stop(self):
            done.append("stop")

    monkeypatch.setattr(torch.profiler, "profile", Profiler)
    cuda = Cuda(monkeypatch, used=used)
    cuda.calls = done
    with trace() as found:
        done.append("work")
    wait = [("synchronize", 0)] * used
    assert done == [["CPU", "CUDA"] if used else ["CPU"], *wait, "start", "work", *wait, "stop"]
    assert found.began == pytest.approx(3)
    del done[:]
    with pytest.raises(ValueError, match="here"), trace():
        fail()
    assert done[1:] == [*wait, "start", "stop"]


@pytest.mark.parametrize("name", ["ncclDevKernel_X", "rcclDevKernel_X", "NCCL_Y"])
def test_kernels_that_communicate_have_their_own_lane(name):
    events = [event(name, 1000, 1500, device="CUDA", linked=7), event("gemm", 1, 2, device="CUDA")]
    spans, _ = spans_of(SimpleNamespace(events=lambda: events, trace_start_ns=lambda: 0))
    found = [(one.name, one.lane, one.kind) for one in spans]
    assert found == [("gemm", "compute", "forward"), (name, "communication", "communication")]
