"""How processors are built: the use of their area, and their memories from near to far."""

import math
from collections.abc import Sequence

COLORS = {
    "control": "#e69f00",
    "arithmetic": "#009e73",
    "memory on the chip": "#56b4e9",
    "memory beside it": "#bbbbbb",
}
EDGE = "#444444"


def chips():
    """Draw a CPU, a GPU and a TPU side by side. The drawing is schematic, the areas are rough.

    Returns:
        The Picture.
    """
    from matplotlib.patches import Patch, Rectangle

    from helpers.plots.picture import Picture

    figure = Picture(figsize=(8.4, 3.5))
    figure.alt = (
        "Three schematic chips. A CPU has few cores; control and caches take most of its area. "
        "A GPU has about a hundred plain cores, mostly arithmetic, and an L2 cache. A TPU has a "
        "few huge matrix units of 128 × 128 multipliers. Below each lies its main memory: large, "
        "slow DRAM for the CPU, small, fast HBM for GPU and TPU."
    )
    drawings = {
        "CPU: few cores, each clever": _cpu(),
        "GPU: a hundred plain cores": _gpu(),
        "TPU: a few huge matrix units": _tpu(),
    }
    for axes, (title, blocks) in zip(figure.subplots(1, 3), drawings.items(), strict=True):
        for kind, x, y, width, height, label in blocks:
            box = Rectangle((x, y), width, height, fc=COLORS[kind], ec=EDGE, lw=0.6)
            axes.add_patch(box)
            middle = (x + width / 2, y + height / 2)
            axes.text(*middle, label, ha="center", va="center", fontsize=8)
        axes.set(xlim=(-0.1, 12.1), ylim=(12.6, -0.1), aspect="equal")
        axes.set_title(title, fontsize=10)
        axes.axis("off")
    keys = [Patch(fc=color, ec=EDGE, lw=0.6, label=kind) for kind, color in COLORS.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


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

    Returns:
        The Picture.

    Raises:
        ValueError: there is no level, or a bandwidth is not positive.
    """
    from matplotlib.patches import Rectangle

    from helpers.plots.picture import Picture
    from helpers.plots.style import shades

    if not levels or min(bandwidth for *_, bandwidth in levels) <= 0:
        raise ValueError("give at least one level, each with a positive bandwidth")
    slowest = min(bandwidth for *_, bandwidth in levels)
    figure = Picture(figsize=(7.6, 0.6 + 0.46 * len(levels)))
    axes = figure.subplots()
    colors = shades(len(levels))
    widths = [1 + math.log10(bandwidth / slowest) for *_, bandwidth in levels]
    for row, ((name, held, bandwidth), width) in enumerate(zip(levels, widths, strict=True)):
        color = colors[row]
        axes.add_patch(Rectangle((-width / 2, row - 0.42), width, 0.84, fc=color, alpha=0.4))
        axes.text(0, row, f"{quantity(bandwidth)}/s", ha="center", va="center", fontsize=10)
        left = -max(widths) / 2 - 0.1
        axes.text(left, row, name, ha="right", va="center", fontsize=9)
        if held is not None:
            axes.text(-left, row, quantity(held), ha="left", va="center", fontsize=9)
    reach = max(widths) / 2
    axes.set(xlim=(-reach - 2.6, reach + 1.1), ylim=(len(levels) - 0.5, -0.6))
    axes.axis("off")
    if title:
        axes.set_title(title, fontsize=10)
    said = (
        f"{name}, {quantity(bandwidth)}/s{f', holds {quantity(held)}' if held is not None else ''}"
        for name, held, bandwidth in levels
    )
    figure.alt = f"{f'{title}. ' if title else ''}Memories from near to far: {'; '.join(said)}."
    return figure


def quantity(count: float) -> str:
    """Bytes in the unit that is easiest to read: decimal, three digits."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} bytes"
