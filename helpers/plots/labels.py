"""Labels beside what they name, placed so that they do not cover each other."""

from collections.abc import Mapping

import numpy as np

from helpers.plots.style import GREY, INK, PAPER, SMALL, course_style

LINE = 1.25  # heights of a line of text
# Where a label may stand, from the best: (points to the right, points up).
PLACES = [(6, 0), (-6, 0), (0, 9), (0, -9), (6, 8), (-6, 8), (6, -8), (-6, -8)]
PLACES += [(3 * dx, 2.4 * dy) for dx, dy in PLACES[2:]]


def label_ends(axes):
    """Write each curve's name to the right of its last point, in its colour, below each other.

    The axes must have their final limits and scales.
    """
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    lines = [line for line in lines if len(line.get_xdata())]
    ends = [
        (line, axes.transData.transform((line.get_xdata()[-1], line.get_ydata()[-1])))
        for line in lines
    ]
    step, free = LINE * SMALL * axes.figure.dpi / 72, float("-inf")
    for line, (_, y) in sorted(ends, key=lambda end: end[1][1]):
        free = max(y, free + step)
        axes.annotate(
            line.get_label(),
            (line.get_xdata()[-1], line.get_ydata()[-1]),
            xytext=(6, (free - y) * 72 / axes.figure.dpi),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
            color=darker(line.get_color()),
            annotation_clip=False,
        )


def darker(color) -> tuple[float, ...]:
    """The colour for text: the light ones of a line can hardly be read on paper."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(color)
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    return tuple(part * min(1.0, 0.42 / max(light, 1e-9)) for part in (red, green, blue))


def label_points(axes, points: Mapping[str, tuple[float, float]], **marks):
    """Draw single points, each with its label where it covers no other point and no other label.

    Args:
        points: label -> (x, y). The axes get their final limits from these points, too.
        marks: Matplotlib's keywords for the points.
    """
    from matplotlib.patheffects import withStroke

    marks = {"color": INK, "ms": 5, "ls": "none", "marker": "o", "zorder": 4, **marks}
    for x, y in points.values():
        axes.plot([x], [y], label="_", **marks)
    with course_style():
        axes.figure.draw_without_rendering()  # fixes the layout, so that distances are known
    dots = [axes.transData.transform(point) for point in points.values()]
    scale = axes.figure.dpi / 72
    crowded = [spot for line in axes.lines for spot in along(axes, line)]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in dots]
    frame = axes.get_window_extent()
    for (label, point), (x, y) in zip(points.items(), dots, strict=True):
        best, found = float("inf"), None
        for number, (dx, dy) in enumerate(PLACES):
            box = label_box(label, x, y, dx, dy, scale)
            outside = (
                box[0] < frame.x0 or box[2] > frame.x1 or box[1] < frame.y0 or box[3] > frame.y1
            )
            cost = 10 * sum(overlap(box, other) for other in taken) + 200 * outside + number
            cost += sum(inside(spot, box) for spot in crowded)
            if cost < best:
                best, found = cost, (dx, dy, box)
        dx, dy, box = found
        taken.append(box)
        clear = [withStroke(linewidth=2.5, foreground=PAPER)]  # from the lines behind
        far = abs(dx) > 8 or abs(dy) > 12
        axes.annotate(
            label,
            point,
            xytext=(dx, dy),
            textcoords="offset points",
            ha="left" if dx > 0 else "right" if dx < 0 else "center",
            va="center",
            fontsize=SMALL,
            color=INK,
            zorder=5,
            path_effects=clear,
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.7} if far else None,
        )


def label_box(label, x, y, dx, dy, scale):
    """About where a label comes to stand, in pixels: (left, bottom, right, top)."""
    wide, high = 0.6 * SMALL * len(label) * scale, LINE * SMALL * scale
    x, y = x + dx * scale, y + dy * scale - high / 2
    x -= 0 if dx > 0 else wide if dx < 0 else wide / 2
    return x, y, x + wide, y + high


def along(axes, line, step: float = 5.0):
    """Places on a drawn line, about `step` pixels from each other."""
    if line.get_linestyle() in ("None", "none", "", " ") or len(line.get_xdata()) < 2:
        return []
    ends = line.get_transform().transform(line.get_xydata())
    ends = ends[np.isfinite(ends).all(axis=1)]
    if not len(ends):
        return []
    lengths = np.hypot(*np.diff(ends, axis=0).T)
    total = np.concatenate([[0.0], np.cumsum(lengths)])
    places = np.arange(0.0, total[-1], step)
    return list(
        zip(np.interp(places, total, ends[:, 0]), np.interp(places, total, ends[:, 1]), strict=True)
    )


def inside(spot, box) -> bool:
    return box[0] <= spot[0] <= box[2] and box[1] <= spot[1] <= box[3]


def overlap(box, other) -> float:
    """The area that two boxes share."""
    wide = min(box[2], other[2]) - max(box[0], other[0])
    high = min(box[3], other[3]) - max(box[1], other[1])
    return max(wide, 0) * max(high, 0)
