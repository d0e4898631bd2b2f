"""The largest model that fits, over the number of ranks, one curve for each way to hold it."""

from collections.abc import Mapping

from helpers.plots.curve import curves
from helpers.plots.style import WIDTH, shades

DECADES = {1e8: "100M", 1e9: "1B", 1e10: "10B", 1e11: "100B", 1e12: "1T", 1e13: "10T", 1e14: "100T"}


def what_fits(
    sizes: Mapping[str, Mapping[int, float]],
    *,
    models: Mapping[str, float] | None = None,
    title: str = "",
    on=None,
    width: float = WIDTH,
    height: float = 3.2,
    alt: str = "",
):
    """Draw the largest number of parameters over the ranks, both axes logarithmic.

    Args:
        sizes: name -> {ranks: parameters}, as `helpers.plans.zero_memory.largest_models` returns.
        models: name -> parameters: dashed guides, such as {"GPT-3": 175e9}.
        on, alt: as `curves` has them.

    Raises:
        ValueError: there is nothing to draw, or a size of 0 has no place on a logarithmic axis.
    """
    found = [size for row in sizes.values() for size in row.values()]
    if not found or min(found) <= 0:
        raise ValueError("what_fits draws positive numbers of parameters")
    ranks = sorted({n for row in sizes.values() for n in row})
    shown = [*found, *(models or {}).values()]
    low, high = min(shown) / 2, max(shown) * 2
    colors = shades(len(sizes))  # the names are in order: each shards more than the one before
    return curves(
        {name: (list(row), list(row.values())) for name, row in sizes.items()},
        log="xy",
        xlabel="ranks",
        ylabel="largest model, parameters",
        title=title,
        ylim=(low, high),
        xticks=ranks,
        yticks={size: label for size, label in DECADES.items() if low <= size <= high},
        styles={name: {"color": color} for name, color in zip(sizes, colors, strict=True)},
        hlines=models,
        key="right",
        on=on,
        width=width,
        height=height,
        alt=alt,
    )
