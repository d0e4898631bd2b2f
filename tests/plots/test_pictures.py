"""Every kind of picture shows what its data say: compared with the pictures that were looked at.

`kept.txt` has a text for each case: every label with its unit, every mark with its place and its
colour, the key, the words for readers who do not see it. After a change on purpose, look at the
pictures: `python -m tests.plots.test_pictures FOLDER` saves them, and writes the texts anew.
"""

import functools
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers import plots
from helpers.plots.agreement import costs, equivalence, fit_quality, frontier
from helpers.plots.bar import histogram
from helpers.plots.film import film, frame, stacked
from helpers.plots.holdings import holdings, replicas, shares
from helpers.plots.page import curve_figure
from helpers.plots.roofline import chips, hierarchy, roofline
from helpers.plots.serving import serving, token_rows
from helpers.plots.style import RANK_COLORS
from helpers.plots.timeline import Box, timeline
from helpers.plots.traffic_diff import traffic_diff
from tests.plots.seen import same, seen
from tests.plots.steps import OURS, THEIRS, a_step, message

KEPT = Path(__file__).with_name("kept.txt")
MANY = len(RANK_COLORS) + 2  # more ranks than colours
LINES = {"rank 1, measured": ([1, 10], [2.0, 3.0]), "rank 1, formula": ([1, 10], [2.0, 3.1])}
GROUPS = {"1 MB": {"ours": 2, "PyTorch": 3}, "2 MB": {"PyTorch": 4}}
STATE = {
    "stage 0": {"parameters": 15e9, "gradients": 15e9, "optimizer": 90e9},
    7: {"parameters": 1e9, "scratch": 2e6},
    "none": {},
}
SIZES = {"stage 1": {64: 19e9, 1: 5e9}, "stage 3": {1: 5e9, 8: 320e9}}
ROOFS = {"small": (100.0, 10.0), "large": (4000.0, 20.0)}
GRID = ROOFS | {"third": (10.0, 30.0), "fourth": (7.0, 2.0)}
PAGED = {"a": ([0, 1, 3], 10), "b": ([0, 1], 7), "c": ([5], 0)}
SERVED = {
    "request 0": [("waiting", 0.0, 1.0), ("prefill", 1.0, 2.0), ("decode", 2.0, 5.0)],
    "request 1": [("prefill", 2.0, 3.0), ("preempted", 3.0, 4.0), ("decode", 4.5, 4.5)],
    "request 2": [],
}
BLOCKS = {"used": [(1.0, 2.0, 3), (2.0, 3.0, 4), (4.0, 5.0, 1)], "reserved": [(1.0, 5.0, 6)]}
STREAMS = {
    "together": {"stream 0": [0.1, 0.2, 1.5, 1.6], "stream 1": [0.3]},
    "apart": {"stream 0": [0.1, 0.2, 0.3], "stream 1": [0.4, 0.6], "stream 2": []},
}
PIECES = [(0, 0, 1, "F", 0, 0), (1, 1, 2, "F", 1, 0), (1, 2, 4, "B", 1, 0), (0, 4, 6, "B", 0, 0)]
CHUNKS = [
    (2, 5, 9, "W", 5, 0),
    (0, 1, 4, "I", 3, 0),
    (0, 0, 1, "I", 0, 1),
    (0, 4, 4.001, "F", 0, 1),
]
WORK = [
    Box(lane="a", start=2, duration=2, kind="range"),
    Box(lane="a", start=3, duration=2, kind="communication", label="12"),
    Box(lane="b", start=4, duration=1, kind="rank 2", label="x"),
    Box(lane="b", start=2, duration=1e-3, kind="mine", label="too long for it"),
    Box(lane="b", start=7, duration=2),
]
MOMENTS = [("backward", "", "activations"), ("backward", "", "gradients"), ("forward", "", "other")]
LAYERS = [{"c": 1.0, "a": 1.0, "b": 2.0}, {"b": 0, "c": 3}, {}, {"z": 1}]


def on_the_second(draw, *args, **options):
    """Drawn on the second of two plots, with the caller's own words."""
    picture = plots.panels(2)
    assert draw(*args, on=picture.axes[1], alt="Mine.", **options) is picture
    return picture


def two_on_one():
    picture = plots.curves({"a": [1, 2]}, title="first", log="xy")
    return plots.curves({"b": ([1, 2], [2, 3])}, on=picture.axes[0], log="y")


def parabolas(wide: bool):
    compute = torch.tensor([1.25e18, 2e20]).numpy()
    params = torch.tensor([1e8, 2e8, 4e8] * 2).numpy()
    runs = params, 1.01 * compute.repeat(3), torch.arange(6.0).numpy()
    return frontier(
        SimpleNamespace(
            parabolas=[(1, 0.1, 0), (2, 0, 0.01)] if wide else (),
            compute=compute,
            params=[2e8, 3e9],
            loss=[1, 2],
            runs=runs,
            a=0.5,
            optimal=lambda c: (0.2 * c**0.5, None),
        )
    )


CASES = {
    "curves": lambda: plots.curves(LINES, xlabel="ranks", ylabel="MB", title="bytes", log="x"),
    "curves of a sequence": lambda: plots.curves([3, 2, 1], width=5, height=4),
    "curves with a key beside": lambda: plots.curves({f"{n}": [n, n] for n in range(4)}),
    "curves with a key above": lambda: plots.curves({"a": [1, 2]}, key="above", title="title"),
    "curves without a key": lambda: plots.curves({"z": [1, 2], "a": [3, 4]}, key=""),
    "nested curves": lambda: plots.curves({f"{n}": [1, 2] for n in range(6)}, nested=True),
    "curves with styles": lambda: plots.curves(
        {"a": [1, 2], "b": range(30)}, styles={"a": {"ls": ":", "lw": 9, "c": "red", "label": "me"}}
    ),
    "curves with ticks, guides and points": lambda: plots.curves(
        {"simulated": ([2, 1024], [50, 400])},
        **{"log": "xy", "xticks": [2, 1024], "yticks": {50: "fifty", 400: 400}},
        **{"vlines": {"critical": 30}, "hlines": {"goal": 60}, "xlim": (1, 2000), "ylim": (9, 900)},
        points={"here": (10, 100), "there": (20, 100)},
    ),
    "curves on a plot": lambda: on_the_second(plots.curves, {"a": [1, 2]}, title="t"),
    "curves over curves": two_on_one,
    "bars": lambda: plots.bars(
        {"7B": 112, 70: -2, "rank 1": 9}, xlabel="GB", numbers="{:.0f} GB", title="state"
    ),
    "bars in groups": lambda: plots.bars(GROUPS, numbers="{:.1f}", vlines={"limit": 5, "low": 1}),
    "bars as points": lambda: plots.bars(
        {"a": 1, "b": 100, "backward": 10}, log=True, vlines={"limit": 10}, numbers="{:.0f} s"
    ),
    "groups as points": lambda: plots.bars(GROUPS, log=True, xlim=(0.01, 80), width=4, height=2),
    "stacked bars": lambda: plots.bars(
        {"tensor": {"norms": 3, "scores": 2}, "sequence": {"scores": 2, "masks": 1}},
        **{"stacked": True, "numbers": "{:.0f} MB", "xlabel": "MB"},
    ),
    "bars on a plot": lambda: on_the_second(plots.bars, {"a": 1}),
    "memory": lambda: plots.memory_bars(STATE, title="a model", vlines={"A100": 80e9, "PC": 8e9}),
    "memory of a few bytes": lambda: plots.memory_bars({"a": {"x": 500}}, width=5, height=2),
    "memory on a plot": lambda: on_the_second(plots.memory_bars, {"a": {"parameters": 1e6}}),
    "what fits": lambda: plots.what_fits(SIZES, models={"GPT-3": 175e9}, title="80 GB"),
    "what fits, few": lambda: plots.what_fits({"a": {1: 2e9, 2: 5e10}}, width=5, height=4),
    "what fits on a plot": lambda: on_the_second(plots.what_fits, {"a": {1: 2e8, 2: 2e14}}),
    "intervals": lambda: plots.intervals(
        {"rank 1": (1, 2, 4), "b": (0, 3, 3)}, vlines={"Kaplan": 2.5}, xlabel="e"
    ),
    "intervals with a title": lambda: plots.intervals(
        {"a": (1, 2, 4)}, title="t", xlim=(0.5, 8), width=5, height=2
    ),
    "intervals on a plot": lambda: on_the_second(plots.intervals, {"a": (1, 2, 4)}),
    "heat": lambda: plots.heat(
        torch.arange(12.0).reshape(2, 6),
        numbers="{:.0f}",
        columns={1: "rank 0"},
        names=["a", "b"],
        cut_columns=2,
        limits=(2, None),
        cmap="gray",
    ),
    "heat with cuts": lambda: plots.heat(
        [[0.125, 8.75]] * 5, cut_rows=2, xlabel="x", ylabel="y", title="t", width=5, height=2
    ),
    "heat on a plot": lambda: on_the_second(plots.heat, [[1, 2]], names=[7]),
    "pictures": lambda: plots.pictures(
        {"digits": torch.arange(24.0).reshape(3, 2, 4) / 24, 1: torch.ones(2, 2, 4)}, title="VAE"
    ),
    "pictures of zeros": lambda: plots.pictures({"a": torch.zeros(4, 2, 2)}, alt="Mine.", width=5),
    "histogram": lambda: histogram(
        {"gradients": {-1: 1, -20: 3}, "weights": {0: 7}, "none": {}},
        title="A model",
        ranges={"fp16": (-24, -14, 15), "g": (0, 1, 2)},
    ),
    "histogram of one": lambda: histogram({"": {-3: 1, 4: 1}}, width=5, height=2, ylabel="y"),
    "histogram on a plot": lambda: on_the_second(
        histogram, {"a": {0: 1}}, xlim=(-9, 18), xlabel="x"
    ),
    "costs": lambda: costs(
        {"b, 2 ranks": [(1, 2), (9, 3)], "a, 2 ranks": [(1, 2), (9, 4)]},
        {"a, 2 ranks": [(1, 4)]},
        {"a, 2 ranks": [(1, 5)]},
    ),
    "costs without others": lambda: costs({"a": [(1, 2), (9, 3)]}, {"a": [(1, 2)]}, {}),
    "equivalence": lambda: equivalence(
        "ours", [2.0, 1.0], [2.0, 1.5], {"loss": [0.0, 1e-15], "gradient": [1e-16, 1]}, 1e-12
    ),
    "equivalence of zeros": lambda: equivalence("x", [1.0], [1.0], {"loss": [0.0]}, 1e-3),
    "fit": lambda: fit_quality([1e7, 1e8, 1e9], [3.0, 2.5, 2.0], [3.1, 2.5, 1.9]),
    "fit with bootstraps": lambda: fit_quality(
        [1e8], [3.0], [2.9], [0.4 + n / 100 for n in range(21)]
    ),
    "frontier": lambda: parabolas(True),
    "frontier without parabolas": lambda: parabolas(False),
    "roofline": lambda: roofline(
        ROOFS, operations={"add": 0.25}, measured={"n = 8": (2.0, 15.0), "n = 9": (3.0, 16.0)}
    ),
    "roofline of one": lambda: roofline({"a": (100, 10)}, intensities=(20, 30), title="t"),
    "rooflines in a grid": lambda: roofline(
        GRID,
        operations={"add": 0.25, "matmul": 100, "exp": 2},
        measured={"m": (1, 0.5)},
        title="all",
    ),
    "rooflines without operations": lambda: roofline({**GRID, "last": (1, 1)}),
    "holdings": lambda: holdings(
        {
            "before": [[1, 2], [3, 4.5]],
            "a sum by FSDP2": [torch.tensor([7.0]), None],
            "c": [["x"], []],
        },
        owners={"c": [[1], []]},
    ),
    "holdings of many": lambda: holdings({"own": [[rank] for rank in range(MANY)]}),
    "holdings that grow": lambda: holdings(
        {"a": [[1]], "b": [[], [1234, 0.125, 0.5]]}, owners={"b": [[], [None, 0, 1]]}
    ),
    "shares": lambda: shares(
        (4, 3), [[((0, 2), (0, 1))], [((2, 4), (1, 3)), ((0, 1), (0, 3))], []], title="w"
    ),
    "shares of a vector": lambda: shares((6,), [[((0, 3),)], [((3, 6),)], []], columns=2),
    "shares of an empty tensor": lambda: shares((0, 3), [[((0, 0), (0, 3))]]),
    "shares of many": lambda: shares((MANY,), [[((rank, rank + 1),)] for rank in range(MANY)]),
    "replicas": lambda: replicas([["A", 2, "c"], [3], []], noun="tokens"),
    "replicas of many": lambda: replicas([[rank] for rank in range(MANY)]),
    "blocks": lambda: plots.blocks(PAGED, 8, 4, columns=4, known=iter([0, 2]), title="Paging"),
    "blocks of many": lambda: plots.blocks({f"{i}": ([i], 1) for i in range(16)}, 17, 4),
    "blocks that are free": lambda: plots.blocks({}, 2, 1, columns=9),
    "blocks in the sequences' order": lambda: plots.blocks(
        {"b": ([5, 1], 6), "a": ([5, 1], 8), "c": ([], 0)}, 6, 4
    ),
    "chips": chips,
    "hierarchy": lambda: hierarchy([("a", 1e3, 1e12), ("b", None, 2e9), ("c", 0.0, 1e9)]),
    "hierarchy out of order": lambda: hierarchy(
        [("disk", 1e12, 1e9), ("far", 1e9, 1e13)], title="t"
    ),
    "traffic": lambda: traffic_diff({"ours": OURS, "theirs": THEIRS}, ["a", "b"], title="stage 3"),
    "traffic at the ends of a step": lambda: traffic_diff(
        {"zero": [message(*moment, {}, 8.0) for moment in MOMENTS]}, ["a"], width=5
    ),
    "traffic of the backward": lambda: traffic_diff(
        {
            "x": [
                message(p, d, "gradients", {d: 8.0}, 0)
                for p in ("backward", "forward")
                for d in "ab"
            ],
            "y": [message("update", "", "other", {}, 8.0)] * 3,
        },
        ["a", "b"],
    ),
    "traffic of several layers": lambda: traffic_diff(
        {"x": [message("update", "", "gradients", layers, 8.0) for layers in LAYERS]},
        ["a", "b", "c"],
    ),
    "serving": lambda: serving(SERVED, title="a run"),
    "serving with blocks": lambda: serving(SERVED, BLOCKS, capacity=8, until=6.0, xlabel="steps"),
    "serving without a capacity": lambda: serving(
        {"a": [("decode", 0, 4)]}, {"used": BLOCKS["used"]}
    ),
    "serving nothing": lambda: serving({}, {"used": []}, width=5),
    "serving many": lambda: serving({str(n): [("decode", 0, 1)] for n in range(40)}),
    "token rows": lambda: token_rows(STREAMS, arrivals={"a long prompt": 0.25, "b": 1.0}),
    "one token": lambda: token_rows({"a": {"b": [1]}}, xlabel="steps", width=5),
    "timeline": lambda: timeline(WORK, xlabel="ms", title="t", colors={"mine": "#123456"}),
    "timeline of lanes": lambda: timeline(WORK, lanes=["b", "none", "a", "c"], group=2, width=5),
    "timeline of nothing": lambda: timeline([]),
    "pipelines": lambda: plots.pipelines({"ideal": PIECES, "later": CHUNKS}),
    "pipelines apart": lambda: plots.pipelines(
        {"ideal": PIECES, "late": [(0, 1000, 1001, "W", 0, 5)]}, xlabel=["units", "ms"], width=5
    ),
    "a part of a pipeline": lambda: plots.pipelines({"x": PIECES}, shown=3, counts=(1, 0)),
    "frame": lambda: frame(a_step(), 4, rank=1),
    "frame of what is used": lambda: frame(a_step(), 9),
    "film": lambda: film(a_step(), rank=3).picture(),
    "stacked": lambda: stacked(a_step(), title="a step"),
    "live curve": lambda: curve_figure("loss", {10: ([0], [1]), 2: ([0, 1], [2, 3])}, xlabel="s"),
    "live curves of five": lambda: curve_figure("loss", {n: ([0, 1], [n, n]) for n in range(5)}),
}


@functools.cache
def kept() -> dict[str, str]:
    parts = re.split(r"^== (.*) ==\n", KEPT.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def labels(picture):
    """(text, where it is, its points) of all words drawn; boxes a bit smaller than the letters."""
    words = [t for key in picture.legends for t in (key.get_title(), *key.get_texts())]
    for axes in picture.axes:
        words += [*axes.texts, axes.title]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            words += [label for tick in ticks for label in (tick.label1, tick.label2)]
    return [
        (text.get_text(), text.get_window_extent().shrunk(0.96, 0.7), text.get_fontsize())
        for text in words
        if text.get_text() and text.get_visible()
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_reader_sees_the_same_and_no_word_covers_another(name):
    picture = CASES[name]()
    found, before = seen(picture), kept()[name]
    assert same(found, before) or found == before
    wide, high = picture.bbox.size
    words = labels(picture)
    slide = min(1.4, 1180 / wide) * picture.dpi / 72  # a slide's pixels for a point, at least
    for number, (text, box, points) in enumerate(words):
        assert points * slide > 13.9, text
        assert -2 <= box.x0 <= box.x1 <= wide + 2, text
        assert -2 <= box.y0 <= box.y1 <= high + 2, text
        assert not [other for other, place, _ in words[:number] if place.overlaps(box)], text


def test_every_kept_picture_is_still_drawn():
    assert list(kept()) == list(CASES)


if __name__ == "__main__":
    drawn = {name: draw() for name, draw in CASES.items()}
    KEPT.write_text("".join(f"== {name} ==\n{seen(p)}" for name, p in drawn.items()), "utf-8")
    for folder in map(Path, sys.argv[1:]):
        for name, picture in drawn.items():
            (folder / f"{name}.png").write_bytes(picture._repr_png_()[0])
