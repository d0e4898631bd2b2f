"""The roofline: FLOP/s that a processor can reach, by the work done on each byte it moves.

Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", section 3.
"""

from collections.abc import Mapping

from helpers.plots.style import RANK_COLORS

FAINT = "#888888"


def roofline(
    roofs: Mapping[str, tuple[float, float]],
    *,
    operations: Mapping[str, float] | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None,
    intensities: tuple[float, float] = (0.05, 1e4),
    title: str = "",
):
    """Draw roofs, operations below them, and what was measured, on logarithmic axes.

    Args:
        roofs: name -> (peak in FLOP/s, memory bandwidth in bytes/s). A dot marks each ridge.
        operations: name -> intensity in FLOP per byte: a dotted vertical with its name.
        measured: name -> (intensity, FLOP/s): a cross with its name.
        intensities: the range drawn, in FLOP per byte.

    Returns:
        A Picture: a matplotlib Figure that Jupyter draws.

    Raises:
        ValueError: no roof, or a number that a logarithmic axis cannot show.
    """
    from helpers.plots.picture import Picture

    operations, measured = operations or {}, measured or {}
    numbers = [x for pair in [*roofs.values(), *measured.values()] for x in pair]
    if not roofs:
        raise ValueError("no roof to draw")
    if not all(x > 0 for x in [*numbers, *operations.values(), *intensities]):
        raise ValueError("rates and intensities are to be positive: the axes are logarithmic")
    low, high = intensities
    figure = Picture(figsize=(5.9, 3.9), dpi=80, layout="constrained")
    axes = figure.subplots()
    for number, (name, (peak, bandwidth)) in enumerate(roofs.items()):
        color = RANK_COLORS[number % len(RANK_COLORS)]
        ridge = peak / bandwidth
        xs = [low, *([ridge] if low < ridge < high else []), high]
        ys = [min(peak, x * bandwidth) for x in xs]
        axes.plot(xs, ys, color=color, lw=1.8, label=f"{name}: ridge at {ridge:.3g}")
        axes.plot([ridge], [peak], "o", color=color, ms=4)
    for name, (intensity, flops) in measured.items():
        axes.plot([intensity], [flops], "x", color="black", ms=6, mew=1.6)
        # Slanted: measured points often follow one another closely along a roof.
        axes.annotate(
            name,
            (intensity, flops),
            xytext=(3, -4),
            textcoords="offset points",
            rotation=-40,
            rotation_mode="anchor",
            ha="left",
            va="top",
            fontsize=8,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(
        xlim=(low, high),
        xlabel="arithmetic intensity, FLOP per byte of memory traffic",
        ylabel="FLOP/s at most",
    )
    axes.minorticks_off()  # their labels would crowd a range of less than a decade
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom / (4 if measured else 1), top * 2)
    for name, intensity in operations.items():
        axes.axvline(intensity, color=FAINT, lw=1, ls=":")
        axes.annotate(
            name,
            (intensity, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(-2, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=8,
            color="#444444",
            bbox={"fc": "white", "ec": "none", "alpha": 0.8, "pad": 0.5},
        )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(which="major", color="#eeeeee")
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title)
    columns = min(3, len(roofs))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure
