"""How processors are built: the use of their area, and their memories from near to far."""

import math
from collections.abc import Sequence

from helpers.plots.alt import headed
from helpers.plots.boxes import Box, Text, boxes
from helpers.plots.labels import color_key
from helpers.plots.memory import bytes_text
from helpers.plots.panel import canvas, panels
from helpers.plots.style import shades

COLORS = {
    "control": "#e69f00",
    "arithmetic": "#009e73",
    "memory on the chip": "#56b4e9",
    "memory beside it": "#bbbbbb",
}


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
        boxes(found, on=axes, xlim=(-0.1, 12.1), ylim=(-0.1, 12.6), fontsize=8, title=title)
        axes.set_aspect("equal")
    color_key(picture, COLORS, loc="outside lower center", ncols=4, fontsize=9)
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
            yield "arithmetic", left, top, 2.9, 2.6, "128 × 128\nmultipliers"
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
    for row, ((name, held, bandwidth), color) in enumerate(
        zip(levels, shades(len(levels)), strict=True)
    ):
        place, speed = (
            (-widths[row] / 2, row - 0.42, widths[row], 0.84),
            f"{bytes_text(bandwidth)}/s",
        )
        found.append(Box(*place, color, speed, line=0, alpha=0.4))
        texts.append(Text(-reach - 0.1, row, name, "right"))
        said.append(f"{name}, {speed}")
        if held is not None:
            texts.append(Text(reach + 0.1, row, bytes_text(held), "left"))
            said[-1] += f", holds {bytes_text(held)}"
    axes, picture = canvas(width=7.6, height=0.6 + 0.46 * len(levels))
    xlim, ylim = (-reach - 2.6, reach + 1.1), (-0.6, len(levels) - 0.5)
    alt = headed(title, f"Memories from near to far: {'; '.join(said)}.")
    boxes(found, on=axes, xlim=xlim, ylim=ylim, texts=texts, fontsize=10, title=title, alt=alt)
    return picture
