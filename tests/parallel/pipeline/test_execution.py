"""One rank's order of messages and computations, and runs of several ranks as threads."""

import weakref
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.point_to_point import Buffers
from helpers.measure import clock
from helpers.parallel.pipeline import execution
from helpers.parallel.pipeline.execution import Execution
from helpers.parallel.pipeline.paced import Sleeping
from helpers.plans.schedules import gpipe, naive, one_f_one_b
from helpers.plans.schedules.plain import interleaved
from helpers.plans.schedules.times import UNIT
from helpers.plans.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v
from tests.parallel.threads import Link, Ranks

SIZES = (3, 2, 0)  # numbers in the message of each micro-batch; one is empty
KINDS = {"F": 100, "B": 200, "I": 300}


class Script:
    """A link, buffers and work in one. It notes what is called, on a clock of its own."""

    device, channels = "cpu", ()

    def __init__(self, rank, stages):
        self.stages = stages
        self.rank, self.log, self.now, self.received = rank, [], 0.0, {}
        self.made = []  # weak references

    def perf_counter(self):
        return self.now

    def receive(self, buffer, source):
        number = self.received[source] = self.received.get(source, -1) + 1
        self.log.append(f"post {source}.{number}")
        if not buffer.numel():
            return None

        def wait():
            self.log.append(f"wait {source}.{number}")
            self.now += 1000
            buffer.fill_(source * 10 + number)

        return SimpleNamespace(wait=wait)

    def send(self, tensor, to):
        value = f"{tensor[0]:.0f}" if tensor.numel() else "nothing"
        self.log.append(f"send {value} to {to}")

    def finish(self):
        self.log.append("finish")
        self.alive = sum(one() is not None for one in self.made)

    def shape(self, micro):
        return (SIZES[micro],)

    def compute(self, action, given):
        size = SIZES[action.micro]
        assert given is None or given.shape == (size,)
        value = "" if given is None else f"{given[0]:.0f}" if size else "nothing"
        self.log.append(f"{action.kind}{action.micro}({value})")
        self.now += 1 + action.micro
        kind = KINDS.get(action.kind)
        target = action.stage + (1 if action.kind == "F" else -1)
        if kind is None or not 0 <= target < self.stages:
            return None
        made = torch.full((size,), float(kind + action.micro))
        self.made.append(weakref.ref(made))
        return made

    def take(self, shape):
        buffer = torch.full(shape, torch.nan)
        self.log.append(f"take {buffer.numel()}")
        return buffer

    def give_back(self, buffer):
        self.log.append(f"free {buffer.numel()}")


def ran(monkeypatch, schedule, rank):
    script = Script(rank, schedule.stages)
    monkeypatch.setattr(clock, "time", script)
    run = Execution(schedule, script)
    run.run(script, script)
    assert script.alive <= 1  # what is handed on is not kept; the last one may be
    return script.log, run.spans


def test_the_middle_of_three_ranks(monkeypatch):
    """Two computations early, each receive gets a buffer; after the backward they are free."""
    log, spans = ran(monkeypatch, one_f_one_b(3, 3), 1)
    assert log == [
        "take 3", "post 0.0", "take 2", "post 0.1", "take 3", "post 2.0",
        "wait 0.0", "F0(0)", "send 100 to 2", "take 0", "post 0.2",
        "wait 0.1", "F1(1)", "send 101 to 2", "take 2", "post 2.1",
        "wait 2.0", "B0(20)", "free 3", "free 3", "send 200 to 0", "take 0", "post 2.2",
        "F2(nothing)", "send nothing to 2",
        "wait 2.1", "B1(21)", "free 2", "free 2", "send 201 to 0",
        "B2(nothing)", "free 0", "free 0", "send nothing to 0", "finish",
    ]  # fmt: skip
    assert tuple(span.action for span in spans) == one_f_one_b(3, 3).orders[1]
    assert {span.rank for span in spans} == {1}
    starts = [1000, 2001, 3003, 3004, 4007, 4009]  # waiting belongs to no span
    assert [(s.start, s.stop - s.start) for s in spans] == list(
        zip(starts, (1, 2, 1, 3, 2, 3), strict=True)
    )


def test_on_nccl_no_message_is_under_way_during_the_first_run_s_computations(monkeypatch):
    """A kernel that is used for the first time may wait until the GPU is idle."""
    waits = []
    monkeypatch.setattr(execution, "wait_for_device", lambda: waits.append(script.log[-1]))
    monkeypatch.setattr(Script, "channels", {(0, 1): "a group"})
    script = Script(1, 3)
    run = Execution(one_f_one_b(3, 3), script)
    run.run(script, script)
    computed = [word for word in script.log if "(" in word]
    assert computed == ["F0(0)", "B0(20)", "F1(1)", "B1(21)", "F2(nothing)", "B2(nothing)"]
    assert waits == ["finish"] * 6
    for place in (place for place, word in enumerate(script.log) if "(" in word):
        asked = script.log[:place]
        posts = [word.split()[1] for word in asked if word.startswith("post")]
        came = [word.split()[1] for word in asked if word.startswith("wait")]
        assert set(posts) - set(came) <= {"0.2", "2.2"}  # those without numbers
        sends = [at for at, word in enumerate(asked) if word.startswith("send")]
        assert "finish" in asked[max(sends, default=0) :]
    del script.log[:]
    script.received, count = {}, len(waits)
    run.run(script, script)
    assert [word for word in script.log if "(" in word][:3] == ["F0(0)", "F1(1)", "B0(20)"]
    assert len(waits) == count


def test_the_two_ends(monkeypatch):
    log, _ = ran(monkeypatch, gpipe(2, 2), 0)
    assert [word for word in log if "(" in word] == ["F0()", "F1()", "B0(10)", "B1(11)"]
    assert [word for word in log if "send" in word] == ["send 100 to 1", "send 101 to 1"]
    log, _ = ran(monkeypatch, zero_bubble_h1(2, 2), 1)
    assert [word for word in log if "(" in word] == ["F0(0)", "I0()", "F1(1)", "I1()", "W0()",
                                                     "W1()"]  # fmt: skip
    assert [word for word in log if "send" in word] == ["send 300 to 0", "send 301 to 0"]
    # the first part of a backward still needs the input, and so does the second
    assert log.index("W0()") < log.index("free 3") < log.index("W1()") < log.index("free 2")


def test_stages_on_one_rank_hand_on_without_a_message(monkeypatch):
    log, _ = ran(monkeypatch, interleaved(1, 2, chunks=3), 0)
    assert sorted(word for word in log if word.startswith("F0")) == ["F0()", "F0(100)", "F0(100)"]
    assert sorted(word for word in log if word.startswith("B1")) == ["B1()", "B1(201)", "B1(201)"]
    assert not any(word.startswith(("send", "post", "take", "free")) for word in log)
    assert log[-1] == "finish"


SCHEDULES = {
    "naive": naive(3, 4),
    "GPipe": gpipe(3, 4),
    "1F1B": one_f_one_b(3, 4),
    "fewer micro-batches": one_f_one_b(3, 2),
    "interleaved": interleaved(3, 6, chunks=2),
    "ZB-H1": zero_bubble_h1(3, 5),
    "ZB-V": zero_bubble_v(3, 6),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_each_computation_gets_its_message_and_buffers_are_used_again(schedule):
    """`Sleeping` refuses a message of another stage or micro-batch."""
    together = Ranks(3)

    def run(rank):
        link, buffers = Link(together, rank), Buffers(4, torch.float32, "cpu")
        one, made = Execution(schedule, link), []
        for _ in range(2):
            one.run(Sleeping(schedule, UNIT, 0.0, 4), buffers)
            assert link.leaving == []
            made.append((buffers.made, len(buffers.free)))
        assert tuple(span.action for span in one.spans) == schedule.orders[rank]
        return made

    for first, second in together.run(run):
        assert first == second
        assert first[0] == first[1]  # all are free
    sent = {ends: len(tensors) for ends, tensors in together.messages.items() if tensors}
    borders = [pair for pair in zip(schedule.placement, schedule.placement[1:], strict=False)
               if pair[0] != pair[1]]  # fmt: skip
    both = [*borders, *(pair[::-1] for pair in borders)]
    assert sent == {pair: 2 * schedule.micro_batches * both.count(pair) for pair in both}
