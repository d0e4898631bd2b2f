"""The roofline: the FLOP/s that a processor can reach, by its work on each byte that it moves.

Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", section 3.
"""

from collections.abc import Mapping

from helpers.plots.alt import two_digits
from helpers.plots.labels import label_points, note
from helpers.plots.panel import panels
from helpers.plots.style import FAINT, GREY, INK, PAPER, SMALL, colors_of, course_style

TOGETHER = 2  # more roofs than these get a plot each
COLUMNS = 3
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CLEAR = {"fc": PAPER, "ec": "none", "pad": 0.5}  # below a name that crosses lines
BELOW = 4  # an axis begins so many times below what it shows


def roofline(
    roofs: Mapping[str, tuple[float, float]],
    *,
    operations: Mapping[str, float] | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None,
    intensities: tuple[float, float] = (0.05, 1e4),
    title: str = "",
    alt: str = "",
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
        alt: the alternative text; by default a description.

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
            if len(plots) == 1:
                name_operations(axes, operations)
            else:
                letter_operations(axes, operations)
        if measured:
            label_points(plots[0][0], measured, marker="x", mew=1.6, ms=6)
        if len(plots) == 1:
            picture.legend(loc="outside lower center", ncols=1 + (len(roofs) > 1))
        elif operations:
            spell_letters(picture, operations)
    picture.alt = alt or words(roofs, operations, measured, title)
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


def name_operations(axes, operations):
    """A dotted line for each operation, with its name along the line's foot."""
    for name, intensity in operations.items():
        axes.axvline(intensity, color=GREY, lw=1, ls=":")
        up = {"rotation": 90, "ha": "right", "va": "bottom", "bbox": CLEAR | {"alpha": 0.8}}
        note(axes, name, (intensity, 0.02), (-2, 0), of=("data", "axes fraction"), **up)


def letter_operations(axes, operations):
    """A dotted line for each operation, with a letter: a small plot has no room for names."""
    for number, (letter, intensity) in enumerate(zip(LETTERS, operations.values(), strict=False)):
        axes.axvline(intensity, color=GREY, lw=1, ls=":")
        place = (intensity, 0.08 + 0.14 * (number % 2))  # in two rows: neighbours keep apart
        note(axes, letter, place, (0, 0), of=("data", "axes fraction"), ha="center", bbox=CLEAR)


def spell_letters(picture, operations):
    """The key of the letters, below the plots."""
    from matplotlib.lines import Line2D

    dotted = {"color": GREY, "lw": 1, "ls": ":"}
    keys = [
        Line2D([], [], label=f"{letter}  {name}", **dotted)
        for letter, name in zip(LETTERS, operations, strict=False)
    ]
    picture.legend(handles=keys, loc="outside lower center", ncols=2, fontsize=SMALL)


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
