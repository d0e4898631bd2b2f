"""When each token of each stream came: a mark for each token, so a pause is a white gap."""

import itertools
from collections.abc import Mapping, Sequence

from helpers.plots.alt import two_digits
from helpers.plots.style import GREY, INK, SMALL, WIDTH, course_style

MARK, ROW = "#332288", 0.17  # the colour of a token; inches


def token_rows(
    runs: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    arrivals: Mapping[str, float] | None = None,
    xlabel: str = "seconds",
    width: float = WIDTH,
):
    """Draw runs below each other, over the same axis of time. Each stream is a row of marks.

    The longest gap between two neighbouring tokens of a run is written into its title.

    Args:
        runs: a run's name -> a stream's name -> the times of its tokens.
        arrivals: label -> time: a dashed guide in every run, when a long prompt arrives for
            example.

    Returns:
        The Picture.

    Raises:
        ValueError: there is no run, or a run has no stream.
    """
    from helpers.plots.picture import Picture

    if not runs or not all(runs.values()):
        raise ValueError("there is no run to draw, or a run has no stream")
    rows = [len(streams) for streams in runs.values()]
    figure = Picture(figsize=(width, 0.7 + sum(0.55 + ROW * max(n, 2) for n in rows)))
    with course_style():
        every = figure.subplots(len(runs), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
        for axes, (name, streams) in zip(every, runs.items(), strict=True):
            axes.eventplot(
                list(streams.values()), lineoffsets=range(len(streams)), linelengths=0.7,
                linewidths=1.0, colors=MARK,
            )  # fmt: skip
            axes.set_yticks(range(len(streams)), list(streams))
            axes.set(ylim=(len(streams) - 0.5, -0.5))
            axes.set_title(f"{name}: the longest gap is {two_digits(longest(streams))} {xlabel}")
            axes.grid(visible=False)
            for label, time in (arrivals or {}).items():
                axes.axvline(time, color=GREY, lw=1, ls="--", zorder=1)
                if axes is every[0]:
                    axes.annotate(
                        label, (time, 0), xycoords=("data", "axes fraction"), xytext=(3, 2),
                        textcoords="offset points", fontsize=SMALL, color=INK,
                    )  # fmt: skip
        every[-1].set_xlabel(xlabel)
        every[-1].set_xlim(left=0)
    figure.alt = words(runs, arrivals or {}, xlabel)
    return figure


def longest(streams: Mapping[str, Sequence[float]]) -> float:
    """The longest gap between two neighbouring tokens of one stream; 0 if there is none."""
    gaps = (b - a for times in streams.values() for a, b in itertools.pairwise(times))
    return max(gaps, default=0.0)


def words(runs, arrivals, xlabel: str) -> str:
    """What is drawn, in words."""
    said = [
        f"{name}: {len(streams)} streams, {sum(map(len, streams.values()))} tokens, "
        f"longest gap {two_digits(longest(streams))} {xlabel}"
        for name, streams in runs.items()
    ]
    guides = [f"{label} at {two_digits(time)} {xlabel}" for label, time in arrivals.items()]
    return f"When each token of each stream came. {'; '.join([*said, *guides])}."
