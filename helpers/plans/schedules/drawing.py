"""A schedule's picture: its ideal timeline, what was measured beside it, and each step of it."""

from collections.abc import Mapping, Sequence

from helpers.plans.schedules.action import Schedule, ScheduleError
from helpers.plans.schedules.times import UNIT, Costs, Span, bubble, held, timeline


def pieces(spans: Sequence[Span]) -> list[tuple[int, float, float, str, int, int]]:
    """Spans as plain tuples, for `helpers.plots`; the first one starts at time 0."""
    zero = min((span.start for span in spans), default=0.0)
    return [
        (s.rank, s.start - zero, s.stop - zero, s.action.kind, s.action.stage, s.action.micro)
        for s in spans
    ]


def draw_spans(rows: Mapping[str, Sequence[Span]], *, xlabel: str | Sequence[str] = "time"):
    """Draw timelines one below the other, ideal or measured, each with its bubble.

    Args:
        rows: name -> Spans: {"ideal": timeline(schedule), "measured here, paced": measured}.
        xlabel: the axis of time with its unit. One for all rows: the rows have the same scale. A
            list with one for each row: each row has its own scale.

    Returns:
        The Picture.
    """
    from helpers.plots.timeline import pipelines

    return pipelines({titled(k, spans): pieces(spans) for k, spans in rows.items()}, xlabel=xlabel)


def titled(name: str, spans: Sequence[Span]) -> str:
    """The name with the bubble in both conventions."""
    found = bubble(spans)
    return f"{name}: bubble {found.over_total:.1%} of the step, {found.over_ideal:.1%} of the work"


def draw(schedule: Schedule, costs: Costs = UNIT):
    """Draw the schedule's ideal timeline; by default F, I and W take one unit each.

    Raises:
        ScheduleError: the schedule cannot run.
    """
    unit = "time (a forward is 1)" if costs is UNIT else "time"
    return draw_spans({schedule.name: timeline(schedule, costs)}, xlabel=unit)


def png(schedule: Schedule):
    """A schedule's picture in a notebook; none if the schedule cannot run."""
    try:
        return draw(schedule)._repr_png_()
    except ScheduleError:
        return None


Schedule._repr_png_ = png  # here: a timeline needs Schedule, so Schedule cannot need a timeline


def step_through(schedule: Schedule, costs: Costs = UNIT, *, start: int | None = None):
    """Step through the schedule, computation by computation, with a slider or as an animation.

    Step k shows the first k computations in the order of their starts. The newest one has a frame.
    A number to the right of each lane counts the activations that the rank holds.

    Args:
        start: the step that is shown first, and in a saved notebook; by default the half.

    Returns:
        An `Explorer`, which shows itself.

    Raises:
        ScheduleError: the schedule cannot run.
    """
    from helpers.plots.explorer import Explorer

    spans = sorted(timeline(schedule, costs), key=lambda span: (span.start, span.rank))
    half = len(spans) // 2 if start is None else start
    steps = {"step": range(len(spans) + 1)}
    return Explorer(lambda step: one_step(schedule, spans, step), steps, {"step": half}, "step")


def one_step(schedule: Schedule, spans: Sequence[Span], count: int):
    """The picture of the first `count` computations; the others leave their lanes empty."""
    from helpers.plots.timeline import pipelines

    done = [sum(span.rank == rank for span in spans[:count]) for rank in range(schedule.ranks)]
    kept = [own[k - 1] if k else 0 for own, k in zip(held(schedule), done, strict=True)]
    newest = spans[count - 1] if count else None
    says = f"{newest.action} on rank {newest.rank}" if newest else "nothing has begun"
    title = f"{schedule.name}, step {count} of {len(spans)}: {says}"
    return pipelines(
        {title: pieces(spans)},
        xlabel="time; on the right: activations held",
        shown=count,
        counts=kept,
    )
