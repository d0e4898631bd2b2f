"""The messages of several strategies side by side, in the order of a step: what each one sends."""

from collections.abc import Mapping, Sequence

from helpers.plots.holdings import Box, Text, boxes
from helpers.plots.labels import color_key
from helpers.plots.style import SERIES_COLORS, SMALL, course_style

COLORS = dict(zip(("parameters", "gradients", "activations", "other"), SERIES_COLORS, strict=False))
LINE, APART = 0.15, 0.25  # inches of a message; between two moments, in lines
BAR = 0.36  # the longest bar, as a share of a column
MARK = 0.012  # the shortest bar


def traffic_diff(
    streams: Mapping[str, Sequence], layers: Sequence[str], *, title: str = "", width: float = 8.0
):
    """Draw one column for each strategy, and one row for each moment of a step, from the top.

    A moment is the forward or the backward of a layer. A bar is a message that starts in it. The
    bar's length is the number of bytes that this rank sends, its colour what they are, and its
    label which layers they belong to. Equal messages in a row share a bar: "blocks.0 ×9".

    Args:
        streams: strategy -> its messages, as `helpers.training.traffic.diff.Message`.
        layers: in the order of the forward.

    Raises:
        ValueError: no strategy sends a message.
    """
    places = moments(streams, layers)
    if not places:
        raise ValueError("no strategy sends a message")
    bars = {
        (column, moment): at(stream, moment)
        for column, stream in enumerate(streams.values())
        for moment in places
    }
    longest = max(sum(map(bytes_of, bar)) for own in bars.values() for bar in own)
    top, tops = 0.0, {}
    for moment in places:
        tops[moment] = top
        top += max(len(bars[column, moment]) for column in range(len(streams))) + APART
    found, texts = [], []
    for (column, moment), own in bars.items():
        for line, together in enumerate(own):
            y, long = tops[moment] + line, sum(map(bytes_of, together)) / longest
            color, long = COLORS[together[0].kind], max(BAR * long, MARK)
            found.append(Box(column, y + 0.1, long, 0.8, color, line=0))
            words = f" {label(together, layers)}"
            texts.append(Text(column + long, y + 0.5, words, "left", SMALL))
    told = "; ".join(
        f"{name}: {sum(map(bytes_of, stream)):,.0f} bytes in {len(stream)} messages"
        for name, stream in streams.items()
    )
    picture = boxes(
        found,
        xlim=(-0.03, len(streams)),
        ylim=(0, top),
        rows={tops[moment] + 0.5: moment for moment in places},
        texts=texts,
        words=f"The messages of a step in {len(places)} moments, from {places[0]} to {places[-1]}. "
        f"{told}.",
        title=title,
        width=width,
        height=LINE * top + 0.9,
    )
    (axes,) = picture.axes
    with course_style():
        for moment in places[1:]:
            axes.axhline(tops[moment] - APART / 2, color="#dddddd", lw=0.6)
        for column in range(1, len(streams)):
            axes.axvline(column - 0.03, color="#bbbbbb", lw=0.8)
        axes.set_xticks([column + 0.45 for column in range(len(streams))], list(streams))
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelsize=SMALL)
    kinds = [k for k in COLORS if any(m.kind == k for s in streams.values() for m in s)]
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.01), "fontsize": SMALL}
    color_key(axes, {kind: COLORS[kind] for kind in kinds}, ncols=len(kinds), **place)
    return picture


def moments(streams, layers: Sequence[str]) -> list[str]:
    """The moments with a message, in the order of a step."""
    forward = ["forward", *(f"forward {layer}" for layer in layers)]
    backward = [f"backward {layer}" for layer in ("begins", *reversed(layers), "ends")]
    every = [*forward, *backward, "update"]
    return [m for m in every if any(at(stream, m) for stream in streams.values())]


def moment_of(message) -> str:
    if message.phase == "update":
        return "update"
    if message.phase == "backward" and not message.during:
        return "backward ends" if message.kind == "gradients" else "backward begins"
    return f"{message.phase} {message.during}".strip()


def at(stream, moment: str) -> list[list]:
    """The messages of a moment, in order; equal neighbours together."""
    found: list[list] = []
    for message in stream:
        if moment_of(message) == moment:
            if found and content(found[-1][0]) == content(message):
                found[-1].append(message)
            else:
                found.append([message])
    return found


def content(message) -> tuple:
    return message.kind, message.call, tuple(message.layers)


def bytes_of(message) -> float:
    return message.payload if message.wire is None else message.wire


def label(together: Sequence, layers: Sequence[str]) -> str:
    """The layers of equal messages in few words."""
    message, times = together[0], f" ×{len(together)}" if len(together) > 1 else ""
    own = [layer for layer in layers if message.layers.get(layer)]
    if not own:
        return (message.call if message.kind == "other" else message.kind) + times
    return own[0] + (f" + {len(own) - 1} more" if len(own) > 1 else "") + times
