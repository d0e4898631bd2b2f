"""The film of a ZeRO-3 step: every byte of a rank, coloured by kind, over the step's events.

An event is a plain dict: {"time": seconds, "unit": "blocks.3", "kind": "gathered", "state":
"in use", "bytes": 7340032}. From this event on, the unit has so many bytes of the kind, in this
state. `film` plays the events, `frame` draws one moment, `stacked` all of them.
"""

from collections.abc import Mapping, Sequence

from helpers.plots.explorer import Explorer
from helpers.plots.holdings import Box, boxes
from helpers.plots.labels import note
from helpers.plots.memory import bytes_text, kind_colors, kind_key, unit_of
from helpers.plots.picture import canvas, panels
from helpers.plots.style import FAINT, GREY, INK, PAPER, course_style

SENT = {"gathering": "////", "sending": "\\\\\\\\"}  # a message writes or reads the bytes
USED = ("in use", "filling", "updating")  # a forward, a backward or the optimizer
STATES = ("held", "ready", "freed", *SENT, *USED)
Event = Mapping[str, object]


def last_of(events: Sequence[Event], upto: int | None = None) -> dict[tuple[str, str], Event]:
    """The last event of each (unit, kind) among the first `upto`; by default among all.

    Raises:
        ValueError: an event is earlier than the one before it, has an unknown state, or has a
            negative number of bytes, or bytes though it frees them.
    """
    found, before = {}, float("-inf")
    for number, event in enumerate(events[:upto], 1):
        wrong = event["state"] not in STATES or event["bytes"] < 0 or event["time"] < before
        if wrong or (event["state"] == "freed" and event["bytes"]):
            raise ValueError(f"event {number} of the film cannot be: {dict(event)}")
        before = event["time"]
        found[event["unit"], event["kind"]] = event
    return found


def totals(events: Sequence[Event]) -> dict[str, list[int]]:
    """{kind: its bytes after each event}.

    Raises:
        ValueError: as `last_of`; or there are no events.
    """
    if not events:
        raise ValueError("a film needs at least one event")
    last_of(events)
    found = {event["kind"]: [] for event in events}
    held: dict[tuple[str, str], int] = {}
    now = dict.fromkeys(found, 0)
    for event in events:
        place = event["unit"], event["kind"]
        now[event["kind"]] += event["bytes"] - held.get(place, 0)
        held[place] = event["bytes"]
        for kind, row in found.items():
            row.append(now[kind])
    return found


def begin(events: Sequence[Event]) -> int:
    """How many events at the start list what the rank has before the step; at least 1."""
    count = next((k for k, event in enumerate(events) if event["state"] != "held"), len(events))
    return max(1, count)


def fullest(events: Sequence[Event]) -> int:
    """The number of events after which the rank has the most bytes."""
    sums = [sum(row) for row in zip(*totals(events).values(), strict=True)]
    return sums.index(max(sums)) + 1


def film(events: Sequence[Event], *, rank: int = 0) -> Explorer:
    """Play the events of one rank. Without a kernel: the moment with the most bytes.

    The first step shows what the rank holds before the training step.

    Raises:
        ValueError: as `totals`.
    """
    events = list(events)
    first, peak = begin(events), fullest(events)
    choices = {"event": range(first, len(events) + 1)}
    start = {"event": max(first, peak)}
    return Explorer(lambda event: frame(events, event, rank=rank), choices, start, play="event")


def frame(events: Sequence[Event], number: int, *, rank: int = 0):
    """Draw the rank's bytes after `number` events: unit by unit, and within the whole step.

    Each kind has its own place in the row of a unit. The place is outlined while it is empty,
    hatched while a message writes or reads the bytes, and has a dark edge while they are in use.

    Raises:
        ValueError: as `totals`; or there is no such event.
    """
    if not 1 <= number <= len(events):
        raise ValueError(f"the film has the events 1 to {len(events)}, not {number}")
    now, event = last_of(events, number), events[number - 1]
    units = list(dict.fromkeys(e["unit"] for e in events))
    tall = 0.3 * len(units) + 0.3
    picture = panels(1, 2, width=8.4, height=tall + 2.5, height_ratios=[tall, 1.5])
    rows, below = picture.axes
    draw_rows(rows, events, units, now)
    stacked(events, on=below)
    below.axvline(number, color=INK, lw=1.2)
    phase = f"{event['phase']}, " if event.get("phase") else ""
    held = bytes_text(sum(e["bytes"] for e in now.values()))
    where = f"rank {rank}, event {number} of {len(events)}, {1e3 * event['time']:.2f} ms"
    title = f"{where}: {phase}{event['unit']} {event['kind']} {event['state']}"
    with course_style():
        rows.set_title(f"{title}. {held}", loc="left")
    used = [f"{u} {k} {e['state']}" for (u, k), e in now.items() if e["state"] in (*SENT, *USED)]
    at_work = f" At work: {', '.join(used)}." if used else ""
    picture.alt = f"{title}. The rank holds {held}.{at_work}"
    return picture


def draw_rows(axes, events, units, now):
    """A row for each unit, with a place for each kind as wide as the most bytes of the kind."""
    from matplotlib.patches import Patch

    colors = kind_colors(event["kind"] for event in events)
    most: dict[tuple[str, str], int] = {}
    for event in events:
        place = event["unit"], event["kind"]
        most[place] = max(most.get(place, 0), event["bytes"])
    wide = {kind: max(b for (_, k), b in most.items() if k == kind) for kind in colors}
    gap = 0.02 * sum(wide.values())
    found = []
    for row, unit in enumerate(units):
        left = 0.0
        for kind, color in colors.items():
            at = left, row - 0.33
            found.append(Box(*at, most.get((unit, kind), 0), 0.66, edge=FAINT, line=0.8))
            if event := now.get((unit, kind)):
                state, look = event["state"], {"color": color, "line": 0}
                if state in SENT:
                    look = {"color": PAPER, "edge": color, "line": 0, "hatch": SENT[state]}
                elif state in USED:
                    look |= {"edge": INK, "line": 1.6}
                found.append(Box(*at, event["bytes"], 0.66, **look))
            left += wide[kind] + gap
    limits = {"xlim": (-gap / 2, left), "ylim": (-0.5, len(units) - 0.5)}
    boxes(found, on=axes, rows=dict(enumerate(units)), **limits)
    hatched = Patch(facecolor=PAPER, edgecolor=GREY, hatch="////", label="in a message")
    edged = Patch(facecolor=PAPER, edgecolor=INK, lw=1.6, label="in use")
    kind_key(axes, colors, hatched, edged)


def stacked(events: Sequence[Event], **frame):
    """Draw all bytes of the rank over the step's events, stacked by kind.

    Args:
        frame: title, on, width, height, alt, as `helpers.plots.picture.canvas` has them.

    Raises:
        ValueError: as `totals`.
    """
    kinds, start, peak = totals(events), begin(events), fullest(events)
    colors = kind_colors(kinds)
    sums = [sum(row) for row in zip(*kinds.values(), strict=True)]
    scale, unit = unit_of(max(sums))
    places = range(1, len(events) + 2)  # each state lasts until the next event
    rows = [[nbytes / scale for nbytes in [*kinds[kind], kinds[kind][-1]]] for kind in colors]
    before, most, after = (bytes_text(sums[k]) for k in (start - 1, peak - 1, -1))
    words = f"{before} before the step, {most} at most, {after} at the end."
    words = f"The bytes of a rank over {len(events)} events, stacked by kind: {words}"
    labels = {"xlabel": "events of the step", "ylabel": unit, "width": 8.4, "height": 2.4}
    with canvas(words, **labels | {"xlim": (start, len(events) + 1)} | frame) as axes:
        axes.stackplot(places, *rows, colors=list(colors.values()), step="post", lw=0)
        axes.axvline(peak, color=GREY, lw=0.8, ls=":")
        note(axes, "most bytes", (peak, 1), (3, -1), of=("data", "axes fraction"), va="top")
        axes.margins(y=0.16)
        if "on" not in frame:
            kind_key(axes, colors)
    return axes.figure
