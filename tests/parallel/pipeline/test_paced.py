"""Paced stages: the schedule as planned, with real messages."""

import time
from types import SimpleNamespace

import pytest

from helpers.comm.mesh import Layout, make_mesh
from helpers.parallel.pipeline import paced as module
from helpers.parallel.pipeline.paced import Sleeping, merged, paced
from helpers.plans.schedules import Action, Schedule, ScheduleError, gpipe, one_f_one_b
from helpers.plans.schedules.times import Costs, Span, bubble, timeline
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from helpers.runtime.cluster import Cluster
from tests.parallel.threads import Link, Ranks


@pytest.fixture(scope="module")
def four():
    with Cluster(workers=4, device="cpu") as cluster:
        yield cluster


def sleep(worker, schedule, costs):
    mesh = worker.state.mesh = getattr(worker.state, "mesh", None) or make_mesh(Layout(pp=4))
    return paced(mesh, schedule, costs, seconds=0.01)


COSTS = Costs(forward=1.0, input=1.5, weight=0.5)
PACED = [gpipe(4, 4), one_f_one_b(4, 6), zero_bubble_v(4, 4)]


@pytest.mark.parametrize("schedule", PACED, ids=lambda s: s.name)
def test_paced_stages_run_the_schedule_as_planned(four, schedule):
    """No rank is faster than planned, or computes before its inputs; the bubble is that of plan."""
    spans = merged(four.run(sleep, schedule=schedule, costs=COSTS), seconds=0.01)
    for rank, order in enumerate(schedule.orders):
        assert tuple(span.action for span in spans if span.rank == rank) == order
    assert all(s.stop - s.start >= 0.99 * COSTS.of(s.action) for s in spans)
    ends = {span.action: span.stop for span in spans}
    for span in spans:
        if span.action.kind == "F" and span.action.stage:
            assert span.start >= ends[Action("F", span.action.stage - 1, span.action.micro)]
    measured, ideal = bubble(spans), bubble(timeline(schedule, COSTS))
    assert min(s.start for s in spans) == 0
    assert measured.makespan >= 0.99 * ideal.makespan


@pytest.mark.parametrize("kind", ["F", "B", "I"])
def test_a_message_has_its_stage_and_its_micro_batch(kind):
    """F goes to the next stage, B and I to the stage before; W, and the two ends, send nothing."""
    work = Sleeping(zero_bubble_v(2, 4), Costs(), 0.0, 5)
    assert work.shape(3) == (5,)
    assert work.compute(Action(kind, 2, 3), None).tolist() == [2, 3, 3, 3, 3]
    assert work.compute(Action("W", 2, 3), None) is None
    assert work.compute(Action(kind, 3 if kind == "F" else 0, 3), None) is None
    given = work.compute(Action(kind, 1, 3), None)
    work.compute(Action(kind, 2 if kind == "F" else 0, 3), given)
    words = f"{kind}. .* received micro-batch 3 of stage 1"
    for stage, micro in ((1, 3), (2 if kind == "F" else 0, 1)):
        with pytest.raises(RuntimeError, match=words):
            work.compute(Action(kind, stage, micro), given)


def late(worker):
    """Rank 3 comes late. When it came, and the spans."""
    mesh = make_mesh(Layout(pp=4))
    if worker.rank == 3:
        time.sleep(0.3)
    came = time.perf_counter()
    return came, paced(mesh, gpipe(4, 2), seconds=0.0)


def test_all_ranks_start_together(four):
    """The first stage needs no message to start. A late rank would make its bubble longer."""
    came, spans = zip(*four.run(late), strict=True)
    assert min(span.start for own in spans for span in own) > max(came)


def test_a_schedule_that_cannot_run_is_refused(monkeypatch):
    """Before any message: a rank would wait for ever."""
    order = gpipe(1, 2).orders[0]
    wrong, mesh = (
        Schedule("edited", (0,), 2, (order[::-1],)),
        SimpleNamespace(link=Link(Ranks(1), 0)),
    )
    monkeypatch.setattr(module, "between_neighbours", lambda mesh, axis: {"pp": mesh.link}[axis])
    with pytest.raises(ScheduleError, match="before"):
        paced(mesh, wrong, seconds=0.0)
    with pytest.raises(ValueError, match="2 numbers, not 1"):
        paced(mesh, gpipe(1, 2), numbers=1)


def test_merged_spans_begin_at_zero_in_units():
    ours = [Span(1, 7.0, 8.0, Action("F", 1, 0))], [Span(0, 5.0, 6.0, Action("F", 0, 0))]
    first, second = merged(ours, seconds=0.5)
    assert (first.rank, first.start, first.stop) == (0, 0.0, 2.0)
    assert (second.rank, second.start, second.stop) == (1, 4.0, 6.0)
