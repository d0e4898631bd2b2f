"""Words beside what they name: notes, keys, names of rows, labels that do not cover each other."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.transforms import Bbox

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
    dots = axes.transData.transform(list(points.values()))
    scale = axes.figure.dpi / 72
    crowded = [spot for line in axes.lines for spot in along(axes, line)]
    taken = [Bbox([dot - 6, dot + 6]) for dot in dots]
    frame = axes.get_window_extent()
    clear = [withStroke(linewidth=2.5, foreground=PAPER)]  # from the lines behind
    for (label, point), dot in zip(points.items(), dots, strict=True):
        boxes = [label_box(label, *dot, dx, dy, scale) for dx, dy in PLACES]
        costs = [
            10 * sum(overlap(box, other) for other in taken)
            + 200 * bool((box.min < frame.min).any() or (box.max > frame.max).any())
            + 3 * box.count_contains(crowded)  # a far place is better than a crossed label
            + number
            for number, box in enumerate(boxes)
        ]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        dx, dy = PLACES[best]
        style = {"ha": "left" if dx > 0 else "right" if dx < 0 else "center", "zorder": 5}
        if abs(dx) > 8 or abs(dy) > 12:  # far from its point
            style["arrowprops"] = {"arrowstyle": "-", "color": GREY, "lw": 0.7}
        note(axes, label, point, (dx, dy), path_effects=clear, **style)


def label_box(label, x, y, dx, dy, scale) -> Bbox:
    """About where a label comes to stand, in pixels."""
    wide, high = 0.6 * SMALL * len(label) * scale, LINE * SMALL * scale
    x, y = x + dx * scale, y + dy * scale - high / 2
    x -= 0 if dx > 0 else wide if dx < 0 else wide / 2
    return Bbox.from_bounds(x, y, wide, high)


def overlap(box: Bbox, other: Bbox) -> float:
    """The area that two boxes share."""
    both = Bbox.intersection(box, other)
    return both.width * both.height if both else 0.0


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
    across, up = (np.interp(places, total, numbers) for numbers in ends.T)
    return list(zip(across, up, strict=True))
