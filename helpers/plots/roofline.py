"""How processors are built, their memories from near to far, and the roofline.

A roofline shows the FLOP/s that a processor can reach, by its work on each byte that it moves.

Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", section 3.
"""

import math
from collections.abc import Mapping, Sequence
from string import ascii_lowercase

from helpers.plots.alt import two_digits
from helpers.plots.holdings import Box, Text, boxes
from helpers.plots.labels import color_key, label_points, note
from helpers.plots.memory import bytes_text
from helpers.plots.picture import panels
from helpers.plots.style import FAINT, GREY, INK, PAPER, SMALL, colors_of, course_style, shades

COLORS = {
    "control": "#e69f00",
    "arithmetic": "#009e73",
    "memory on the chip": "#56b4e9",
    "memory beside it": "#bbbbbb",
}
TOGETHER = 2  # more roofs than these get a plot each
COLUMNS = 3
CLEAR = {"fc": PAPER, "ec": "none", "pad": 0.5}  # below a name that crosses lines
BELOW = 4  # an axis begins so many times below what it shows


def chips():
    """Draw a CPU, a GPU and a TPU side by side. The drawing is schematic, the areas are rough."""
    picture = panels(3, width=8.4, height=3.5)
    drawings = {
        "CPU: few cores, each clever": _cpu(),
        "GPU: a hundred plain cores": _gpu(),
        "TPU: a few huge matrix units": _tpu(),
    }
    for axes, (title, blocks) in zip(picture.axes, drawings.items(), strict=True):
        found = [Box(*place, COLORS[kind], label) for kind, *place, label in blocks]
        boxes(found, on=axes, xlim=(-0.1, 12.1), ylim=(-0.1, 12.6), fontsize=10, title=title)
        axes.set_aspect("equal")
    color_key(picture, COLORS, loc="outside lower center", ncols=4)
    picture.alt = (
        "Three schematic chips. A CPU has few cores; control and caches take most of its area. "
        "A GPU has about a hundred plain cores, mostly arithmetic, and an L2 cache. A TPU has a "
        "few huge matrix units of 128 × 128 multipliers. Below each lies its main memory: large, "
        "slow DRAM for the CPU, small, fast HBM for GPU and TPU."
    )
    return picture


def _cpu():
    """(kind, x, y, width, height, label) of each block, in twelfths of the drawing; y goes down."""
    for column in range(2):
        for row in range(2):
            x, y = 6 * column, 3 * row
            yield "control", x, y, 3, 2.8, "order,\nguess"
            yield "arithmetic", x + 3, y, 2.8, 1.4, "units"
            yield "memory on the chip", x + 3, y + 1.4, 2.8, 1.4, "L1, L2"
    yield "memory on the chip", 0, 6, 11.8, 3.4, "L3 cache, shared"
    yield "memory beside it", 0, 9.9, 11.8, 2.2, "DRAM: large, slow"


def _gpu():
    for row in range(6):
        for column in range(6):
            x, y = 2 * column, 1.25 * row
            yield "control", x, y, 0.3, 1.1, ""
            yield "arithmetic", x + 0.3, y, 1.1, 1.1, ""
            yield "memory on the chip", x + 1.4, y, 0.4, 1.1, ""
    yield "memory on the chip", 0, 7.6, 11.8, 1.8, "L2 cache, shared"
    yield "memory beside it", 0, 9.9, 11.8, 2.2, "HBM: small, fast"


def _tpu():
    for column in range(2):
        x = 6 * column
        yield "control", x, 0, 5.8, 0.8, "one scalar unit"
        for place in range(4):
            left, top = x + 2.9 * (place % 2), 0.9 + 2.6 * (place // 2)
            yield "arithmetic", left, top, 2.9, 2.6, "128 ×\n128"
        yield "arithmetic", x, 6.1, 5.8, 0.9, "vector unit"
        yield "memory on the chip", x, 7.1, 5.8, 2.3, "memory that the\nprogram fills"
    yield "memory beside it", 0, 9.9, 11.8, 2.2, "HBM: small, fast"


def hierarchy(levels: Sequence[tuple[str, float | None, float]], *, title: str = ""):
    """Draw memories from near to far: the width of each step is the logarithm of its bandwidth.

    Args:
        levels: (name, capacity in bytes or None, bandwidth in bytes/s), the nearest first.

    Raises:
        ValueError: there is no level, or a bandwidth is not positive.
    """
    if not levels or min(bandwidth for *_, bandwidth in levels) <= 0:
        raise ValueError("give at least one level, each with a positive bandwidth")
    slowest = min(bandwidth for *_, bandwidth in levels)
    widths = [1 + math.log10(bandwidth / slowest) for *_, bandwidth in levels]
    found, texts, said, reach = [], [], [], max(widths) / 2
    for row, (name, held, bandwidth) in enumerate(levels):
        wide, speed = widths[row], f"{bytes_text(bandwidth)}/s"
        look = {"color": shades(len(levels))[row], "line": 0, "alpha": 0.4}
        found.append(Box(-wide / 2, row - 0.42, wide, 0.84, label=speed, **look))
        texts.append(Text(-reach - 0.1, row, name, "right"))
        said.append(f"{name}, {speed}")
        if held is not None:
            texts.append(Text(reach + 0.1, row, bytes_text(held), "left"))
            said[-1] += f", holds {bytes_text(held)}"
    return boxes(
        found,
        xlim=(-reach - 2.6, reach + 1.1),
        ylim=(-0.6, len(levels) - 0.5),
        texts=texts,
        fontsize=10,
        words=f"Memories from near to far: {'; '.join(said)}.",
        title=title,
        width=7.6,
        height=0.6 + 0.46 * len(levels),
    )


def roofline(
    roofs: Mapping[str, tuple[float, float]],
    *,
    operations: Mapping[str, float] | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None,
    intensities: tuple[float, float] = (0.05, 1e4),
    title: str = "",
):
    """Draw roofs, operations below them, and measurements, on logarithmic axes.

    One or two roofs share a plot. More roofs get a plot each, in a grid with common axes: the
    plot's own roof in colour, the others in grey for comparison.

    Args:
        roofs: name -> (peak in FLOP/s, memory bandwidth in bytes/s). A dot marks each ridge.
        operations: name -> intensity in FLOP per byte: a dotted vertical line, with its name or, in
            a grid, with a letter and a key below.
        measured: name -> (intensity, FLOP/s): a cross with its name, in the first plot.
        intensities: the range of the horizontal axis, in FLOP per byte.

    Raises:
        ValueError: there is no roof, or a number is not positive.
    """
    operations, measured = operations or {}, measured or {}
    numbers = [x for pair in [*roofs.values(), *measured.values()] for x in pair]
    if not roofs:
        raise ValueError("no roof to draw")
    if not all(x > 0 for x in [*numbers, *operations.values(), *intensities]):
        raise ValueError("rates and intensities must be positive: the axes are logarithmic")
    with course_style():
        picture, plots = grid(roofs, title)
        points = [y for _, y in measured.values()]
        bottom = min([*points, *(min(p, intensities[0] * b) for p, b in roofs.values())])
        top = max([*points, *(peak for peak, _ in roofs.values())])
        for axes, own in plots:
            axes.set(xscale="log", yscale="log", xlim=intensities)
            axes.set_ylim(bottom / (BELOW if measured or len(plots) > 1 else 1.5), 2 * top)
            axes.minorticks_off()  # their labels would crowd a range of less than a decade
            for name, roof in roofs.items():
                if name not in own:
                    draw_roof(axes, roof, intensities, color=FAINT, lw=1, label="_")
            for name, color in own.items():
                label = f"{name}: ridge at {roofs[name][0] / roofs[name][1]:.3g}"
                draw_roof(axes, roofs[name], intensities, color=color, lw=2, label=label)
            lines = mark_operations(axes, operations, len(plots) > 1)
        if measured:
            label_points(plots[0][0], measured, marker="x", mew=1.6, ms=6)
        if len(plots) == 1:
            picture.legend(loc="outside lower center", ncols=1 + (len(roofs) > 1))
        elif operations:
            names = [f"{x}  {name}" for x, name in zip(ascii_lowercase, operations, strict=False)]
            style = {"loc": "outside lower center", "ncols": 2, "fontsize": SMALL}
            picture.legend(handles=lines, labels=names, **style)
    picture.alt = words(roofs, operations, measured, title)
    return picture


def grid(roofs, title):
    """A picture, and for each of its plots the axes and the roofs in colour: name -> colour."""
    colors = colors_of(roofs)
    across, up = "FLOP per byte of memory traffic", "FLOP/s at most"
    if len(roofs) <= TOGETHER:
        picture = panels(1, width=6.2, height=3.7)
        axes = picture.axes[0]
        axes.set(xlabel=f"arithmetic intensity, {across}", ylabel=up, title=title)
        return picture, [(axes, colors)]
    rows = -(-len(roofs) // COLUMNS)
    picture = panels(COLUMNS, rows, width=8.2, height=2.1 * rows + 1.2, sharex=True, sharey=True)
    for axes in picture.axes[len(roofs) :]:
        axes.remove()
    for axes in picture.axes[-COLUMNS:]:  # above a gap, too
        axes.tick_params(labelbottom=True)
    middle = picture.axes[min(len(roofs) - 1, COLUMNS * (rows - 1) + 1)]
    middle.set_xlabel(f"arithmetic intensity, {across}")
    picture.supylabel(up, fontsize=10)
    picture.suptitle(title, fontsize=10.5)
    plots = list(zip(picture.axes, ({name: colors[name]} for name in roofs), strict=True))
    for axes, (name, (peak, bandwidth)) in zip(picture.axes, roofs.items(), strict=True):
        axes.set_title(f"{name}\nridge at {peak / bandwidth:.3g}", fontsize=SMALL, color=INK)
    return picture, plots


def draw_roof(axes, roof, intensities, **style):
    """A slope of bandwidth up to the ridge, then the peak."""
    (peak, bandwidth), (low, high) = roof, intensities
    ridge = peak / bandwidth
    xs = [low, *([ridge] if low < ridge < high else []), high]
    axes.plot(xs, [min(peak, x * bandwidth) for x in xs], **style)
    axes.plot([ridge], [peak], "o", color=style["color"], ms=4, label="_")


def mark_operations(axes, operations, lettered: bool) -> list:
    """A dotted line for each operation, with its name along the line's foot, or with a letter."""
    lines = []
    for number, (name, intensity) in enumerate(operations.items()):
        lines.append(axes.axvline(intensity, color=GREY, lw=1, ls=":"))
        words, place, shift = name, (intensity, 0.02), (-2, 0)
        look = {"rotation": 90, "ha": "right", "va": "bottom", "bbox": CLEAR | {"alpha": 0.8}}
        if lettered:  # a small plot has no room for names
            words, shift, look = ascii_lowercase[number], (0, 0), {"ha": "center", "bbox": CLEAR}
            place = (intensity, 0.08 + 0.14 * (number % 2))  # in two rows: neighbours keep apart
        note(axes, words, place, shift, of=("data", "axes fraction"), **look)
    return lines


def words(roofs, operations, measured, title) -> str:
    """What is drawn, in words."""
    said = [
        f"{name}, peak {two_digits(peak)} FLOP/s, ridge at {peak / bandwidth:.3g} FLOP per byte"
        for name, (peak, bandwidth) in roofs.items()
    ]
    parts = [title, f"Rooflines on logarithmic axes: {'; '.join(said)}"]
    if operations:
        parts.append(
            "Operations: " + ", ".join(f"{n} at {two_digits(x)}" for n, x in operations.items())
        )
    if measured:
        points = (
            f"{n}, {two_digits(y)} FLOP/s at {two_digits(x)}" for n, (x, y) in measured.items()
        )
        parts.append("Measured: " + "; ".join(points))
    return ". ".join(filter(None, parts)) + "."
