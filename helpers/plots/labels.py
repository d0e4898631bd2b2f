"""Words beside what they name: notes, keys, names of rows, labels that do not cover each other."""

from collections.abc import Mapping, Sequence

import numpy as np

from helpers.plots.style import GREY, INK, PAPER, SMALL, course_style

LINE = 1.25  # heights of a line of text
# Where a label may stand, from the best: (points to the right, points up).
PLACES = [(6, 0), (-6, 0), (0, 9), (0, -9), (6, 8), (-6, 8), (6, -8), (-6, -8)]
PLACES += [(3 * dx, 2.4 * dy) for dx, dy in PLACES[2:]]


def note(axes, words, at, shift=(6, 0), *, of=("data", "data"), **style):
    """Write words `shift` points from a place; `of` says in what each of its numbers counts."""
    style = {"textcoords": "offset points", "va": "center", "fontsize": SMALL, "color": INK} | style
    return axes.annotate(words, at, xytext=shift, xycoords=of, **style)


def name_rows(axes, names: Sequence[str] | Mapping[float, str]):
    """Names to the left of rows, without tick marks and lines: one for each, or place -> name."""
    rows = names if isinstance(names, Mapping) else dict(enumerate(names))
    axes.set_yticks(list(rows), list(map(str, rows.values())))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def color_key(target, colors: Mapping[str, str], *more, **place):
    """Say which colour means what, on axes or below a figure; `more` are Matplotlib's handles."""
    from matplotlib.patches import Patch

    handles = [Patch(color=color, label=name) for name, color in colors.items()]
    with course_style():
        target.legend(handles=[*handles, *more], **place)


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
        style = {"ha": "left" if dx > 0 else "right" if dx < 0 else "center", "zorder": 5}
        if far:
            style["arrowprops"] = {"arrowstyle": "-", "color": GREY, "lw": 0.7}
        note(axes, label, point, (dx, dy), path_effects=clear, **style)


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
