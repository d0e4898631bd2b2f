"""What a reader sees on a picture, in words and numbers: a text that can be kept and compared."""

import math
import re

from matplotlib.collections import EventCollection, LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, StepPatch
from matplotlib.ticker import FixedLocator

MANY = 8  # more points of a series are not all listed


def seen(picture) -> str:
    """Size, words, and of each plot: title, axes, ticks, every mark, every label, the key."""
    picture.draw_without_rendering()
    wide, high = picture.get_size_inches()
    found = [f"picture {number(wide)} x {number(high)} inches: {picture!r}"]
    found += [f"title {text!r}" for text in [picture.get_suptitle()] if text]
    found += [f"side {picture.get_supylabel()!r}"] * bool(picture.get_supylabel())
    for axes in picture.axes:
        found += plot(axes)
    for key in picture.legends:
        found += legend(key, key.get_window_extent(), picture.axes)
    return "\n".join(found) + "\n"


def plot(axes):
    titles = [axes.get_title(), axes.get_title("left")]
    labels = [axes.get_xlabel(), axes.get_ylabel()]
    scale = " at one scale" * (axes.get_aspect() != "auto")
    title = " ".join(map(repr, filter(None, titles)))
    yield f"plot {title} over {labels[0]!r} and {labels[1]!r}{scale}"
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        low, high = axis.get_view_interval()
        lines = " lines" if any(line.get_visible() for line in axis.get_gridlines()) else ""
        shown = [f"  {name} from {number(low)} to {number(high)} {axis.get_scale()}{lines}"]
        if isinstance(axis.get_major_locator(), FixedLocator):
            ticks = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
            texts = [(at, text.get_text()) for at, text in ticks if text.get_visible()]
            shown += [f"{number(at)} {text!r}" for at, text in texts if text]
        small = zip(axis.get_minorticklocs(), axis.get_ticklabels(minor=True), strict=True)
        also = [at for at, text in small if text.get_text() and low <= at <= high]
        shown += [f"also {numbers(also)}"] * bool(also)
        marked = sum(low <= at <= high for at in axis.get_minorticklocs())
        shown += [f"{marked} small ticks"] * bool(marked)
        yield ", ".join(shown)
    yield from (f"  {mark}" for mark in marks(axes))
    if axes.get_legend():
        yield from legend(axes.get_legend(), axes.get_legend().get_window_extent(), [axes])


def marks(axes):
    for image in axes.images:
        yield f"image {image.get_cmap().name} {numbers(image.get_clim())}: " + "; ".join(
            numbers(row) for row in image.get_array().filled(math.nan)
        )
    for patch in axes.patches:
        if isinstance(patch, StepPatch):
            values, edges, _ = patch.get_data()
            yield f"steps {numbers(values)} at {numbers(edges)}, {look(patch)}"
        else:
            place = patch.get_x(), patch.get_y(), patch.get_width(), patch.get_height()
            yield f"box {numbers(place)}, {look(patch)}"
    for line in axes.lines:
        points = [f"({numbers(pair)})" for pair in zip(*line.get_data(), strict=True)]
        if len(points) > MANY:
            points = [*points[:3], f"of {len(points)}", *points[-2:]]
        width = f"{line.get_linestyle()} {number(line.get_linewidth())}"
        mark = f"mark {line.get_marker()!r} {color(line.get_markerfacecolor())}"
        yield f"line {line.get_label()!r} {color(line.get_color())} {width} {mark}: " + " ".join(
            points
        )
    for group in axes.collections:
        if isinstance(group, EventCollection):
            yield f"events {numbers(group.get_positions())} in {number(group.get_lineoffset())}"
        elif isinstance(group, PathCollection):
            places = [f"({numbers(place)})" for place in group.get_offsets()]
            yield f"points {colors(group)}: {' '.join(places)}"
        elif not isinstance(group, LineCollection):
            places = [numbers(p.get_extents().extents) for p in group.get_paths()]
            yield f"boxes {colors(group)}: {'; '.join(places)}"
    for text in axes.texts:
        if text.get_text() or getattr(text, "arrow_patch", None):
            yield words(text)


def words(text):
    style = f"{text.get_ha()} {number(text.get_fontsize())} {color(text.get_color())}"
    style += f" turned by {number(text.get_rotation())}" * bool(text.get_rotation())
    arrow = " arrow" if getattr(text, "arrow_patch", None) else ""
    if hasattr(text, "xyann"):
        place = f"{numbers(text.xy)} by {numbers(text.xyann)}"
        return f"note {text.get_text()!r} at {place}, {style}{arrow}"
    return f"text {text.get_text()!r} at {numbers(text.get_position())}, {style}"


def legend(key, box, plots):
    """The entries, and where the key is: over the plots, or on which side of all of them."""
    frames = [axes.get_window_extent() for axes in plots]
    sides = {
        "right": all(box.x0 >= frame.x1 for frame in frames),
        "above": all(box.y0 >= frame.y1 - 1 for frame in frames),
        "below": all(box.y1 <= frame.y0 for frame in frames),
    }
    entries = [
        f"{text.get_text()!r} {entry(mark)}"
        for text, mark in zip(key.get_texts(), key.legend_handles, strict=True)
    ]
    title = f" {key.get_title().get_text()!r}" if key.get_title().get_text() else ""
    yield f"  key {next((s for s in sides if sides[s]), 'inside')}{title}: {'; '.join(entries)}"


def entry(mark) -> str:
    if isinstance(mark, Patch):
        return look(mark)
    if isinstance(mark, Line2D):
        return f"{color(mark.get_color())} {mark.get_linestyle()} {mark.get_marker()}"
    return f"points {colors(mark)}"


def look(patch) -> str:
    face = color(patch.get_facecolor()) if patch.get_fill() else "empty"
    edge = f"{color(patch.get_edgecolor())} {number(patch.get_linewidth())}{patch.get_linestyle()}"
    hatch = f" {patch.get_hatch()}" if patch.get_hatch() else ""
    return f"{face} edge {edge if patch.get_linewidth() or hatch else 'none'}{hatch}"


def colors(group) -> str:
    return " ".join(dict.fromkeys(map(color, group.get_facecolor()))) or "none"


def color(value) -> str:
    text = to_hex(value, keep_alpha=True)
    return (
        "none"
        if text.endswith("00") and len(text) == 9
        else text.removesuffix("ff" * (len(text) == 9))
    )


def number(value) -> str:
    return value if isinstance(value, str) else f"{float(value) + 0.0:.4g}"


def numbers(values) -> str:
    return " ".join(map(number, values))


NUMBER = re.compile(r"(?<![\w#.])-?\d+\.?\d*(?:e[+-]?\d+)?(?![\w.]*[a-z])")


def same(text: str, kept: str) -> bool:
    """Equal but for the last digit of a number, which another processor may round otherwise."""
    if NUMBER.sub("#", text) != NUMBER.sub("#", kept):
        return False
    pairs = zip(NUMBER.findall(text), NUMBER.findall(kept), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=2e-3, abs_tol=1e-9) for a, b in pairs)
