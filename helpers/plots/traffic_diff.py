"""Who sends what when: the messages of several strategies side by side, in the order of a step."""

from collections.abc import Mapping, Sequence

from helpers.plots.style import PAPER, SERIES_COLORS, SMALL

COLORS = dict(zip(("parameters", "gradients", "activations", "other"), SERIES_COLORS, strict=False))
LINE = 0.17  # inches of a message
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
        streams: strategy -> its messages, as `helpers.training.traffic.message.Message`.
        layers: in the order of the forward.

    Returns:
        The Picture.

    Raises:
        ValueError: no strategy sends a message.
    """
    from matplotlib.patches import Patch, Rectangle

    from helpers.plots.panel import canvas
    from helpers.plots.style import course_style

    places = moments(streams, layers)
    if not places:
        raise ValueError("no strategy sends a message")
    top, tops = 0.0, {}
    for moment in places:
        most = max(len(at(stream, moment)) for stream in streams.values())  # bars
        tops[moment] = top
        top += max(most, 1) + 0.5
    bars = [bar for stream in streams.values() for moment in places for bar in at(stream, moment)]
    longest = max(sum(map(bytes_of, bar)) for bar in bars)
    with course_style():
        axes, picture = canvas(width=width, height=LINE * top + 0.9)
        for column, stream in enumerate(streams.values()):
            for moment in places:
                for line, together in enumerate(at(stream, moment)):
                    y = tops[moment] + line
                    long = max(BAR * sum(map(bytes_of, together)) / longest, MARK)
                    color = COLORS[together[0].kind]
                    axes.add_patch(Rectangle((column, y + 0.1), long, 0.8, fc=color, lw=0))
                    text = f" {label(together, layers)}"
                    axes.text(column + long, y + 0.5, text, va="center", fontsize=SMALL - 2)
        for moment in places[1:]:
            axes.axhline(tops[moment] - 0.25, color="#dddddd", lw=0.6)
        for column in range(1, len(streams)):
            axes.axvline(column - 0.03, color="#bbbbbb", lw=0.8)
        axes.grid(visible=False)
        axes.set(xlim=(-0.03, len(streams)), ylim=(top, 0), title=title)
        axes.set_xticks([column + 0.45 for column in range(len(streams))], list(streams))
        axes.xaxis.tick_top()
        axes.set_yticks([tops[m] + 0.5 for m in places], places)
        axes.tick_params(length=0, labelsize=SMALL - 1)
        axes.spines[:].set_visible(False)
        kinds = [k for k in COLORS if any(m.kind == k for s in streams.values() for m in s)]
        axes.legend(
            handles=[Patch(fc=COLORS[kind], ec=PAPER, label=kind) for kind in kinds],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.01),
            ncols=len(kinds),
            fontsize=SMALL - 1,
        )
    told = "; ".join(
        f"{name}: {sum(map(bytes_of, stream)):,.0f} bytes in {len(stream)} messages"
        for name, stream in streams.items()
    )
    axes.words = (
        f"{f'{title}. ' if title else ''}The messages of a step in {len(places)} moments, from "
        f"{places[0]} to {places[-1]}. {told}."
    )
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
