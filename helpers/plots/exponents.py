"""Numbers by their exponent, over the ranges of number formats."""

from collections.abc import Mapping

from helpers.plots.alt import headed
from helpers.plots.labels import note
from helpers.plots.panel import canvas
from helpers.plots.style import FAINT, GREY, WIDTH, colors_of, course_style


def histogram(
    counts: Mapping[str, Mapping[int, int]],
    *,
    ranges: Mapping[str, tuple[int, int, int]] | None = None,
    xlabel: str = "exponent: the number is at least 2 to this power",
    ylabel: str = "share of the numbers, %",
    title: str = "",
    xlim: tuple[int, int] | None = None,
    on=None,
    width: float = WIDTH,
    height: float = 0,
    alt: str = "",
):
    """Draw how many numbers have each exponent, as a share of all numbers of the series.

    Args:
        counts: name -> {exponent: numbers}.
        ranges: format -> its exponents: of the smallest subnormal number, of the smallest normal
            number, of the largest number. Each format is a bar above the histogram, light where
            its numbers are subnormal.
        xlim: the first and the last exponent; by default around the numbers.
        on: the axes of another picture to draw on.
        alt: the alternative text; by default a description.

    Raises:
        ValueError: there are no numbers.
    """
    totals = {name: sum(group.values()) for name, group in counts.items()}
    if not any(totals.values()):
        raise ValueError("no numbers to draw")
    ranges = ranges or {}
    with course_style():
        axes, picture = canvas(on, width=width, height=height or 2.8 + 0.28 * len(ranges))
        colors, step = colors_of(counts), 0.9 / len(counts)
        top = 0.0
        for number, (name, group) in enumerate(counts.items()):
            shares = {e: 100 * n / totals[name] for e, n in sorted(group.items())}
            top = max(top, *shares.values(), 0) if shares else top
            places = [e + 0.05 + step * (number + 0.5) for e in shares]
            axes.bar(places, list(shares.values()), 0.94 * step, color=colors[name], label=name)
        row = 0.11 * top
        for number, (name, (least, normal, most)) in enumerate(ranges.items()):
            height_of = top + row * (number + 0.7)
            axes.barh(height_of, normal - least, 0.5 * row, left=least, color=FAINT)
            axes.barh(height_of, most + 1 - normal, 0.5 * row, left=normal, color=GREY)
            note(axes, name, (1.01, height_of), (0, 0), of=("axes fraction", "data"))
        seen = [e for group in counts.values() for e in group]
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axes.set_xlim(*(xlim or (min(seen) - 2, max(seen) + 3)))
        axes.set_ylim(0, 1.08 * top + row * len(ranges))
        if len(counts) > 1:
            axes.legend()
    axes.words = alt or words(counts, totals, ranges, title)
    return picture


def words(counts, totals, ranges, title) -> str:
    """What is drawn, in words."""
    rows = []
    for name, group in counts.items():
        if group:
            most = max(group, key=group.get)
            rows.append(
                f"{name}: exponents {min(group)} to {max(group)}, most numbers at {most} "
                f"({100 * group[most] / totals[name]:.0f} %)"
            )
    spans = [f"{name} from {least} to {most}" for name, (least, _, most) in ranges.items()]
    ending = f" Formats: {'; '.join(spans)}." if spans else ""
    return headed(title, f"Histogram of exponents. {'; '.join(rows)}.{ending}")
