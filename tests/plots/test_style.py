"""One colour has one meaning, colours of a family stay apart, and nobody else's style changes."""

import contextlib
import itertools

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from helpers.plots import style

# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color
# Vision Deficiency", table 1, severity 1.0: matrices for linear RGB.
EYES = {
    "all cones": np.eye(3),
    "no red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
FAMILIES = {
    "ranks": style.RANK_COLORS[:6],
    "series": style.SERIES_COLORS,
    "work": [c for name, c in style.WORK_COLORS.items() if name not in ("compute", "range")],
    "memory": style.MEMORY_COLORS.values(),
    "sources": style.SOURCE_COLORS.values(),
    "programs": style.PROGRAM_COLORS.values(),
    "shades": style.shades(5),
}


def lab(color, eye):
    """The colour as this eye sees it, in CIE L*a*b*, where distances are differences seen."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    linear = np.clip(EYES[eye] @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(to_xyz @ linear / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("family", FAMILIES)
def test_colours_of_a_family_stay_apart(family, eye):
    pairs = itertools.combinations(FAMILIES[family], 2)
    near = [(a, b) for a, b in pairs if np.linalg.norm(lab(a, eye) - lab(b, eye)) < 10]
    assert near == []


def test_a_name_means_a_colour():
    assert style.meaning("rank 2, measured") == style.RANK_COLORS[2]
    assert style.meaning("Rank 12") is None  # as it is written in the course
    assert style.meaning("rank 12") == style.RANK_COLORS[4]
    assert style.meaning("backward") == style.WORK_COLORS["backward"]
    assert style.meaning("PyTorch, 25 MiB") == style.PROGRAM_COLORS["PyTorch"]
    assert style.meaning("formula 2(N−1)S") == style.SOURCE_COLORS["formula"]
    assert style.meaning("all-reduce, 25 MiB") == style.WORK_COLORS["communication"]
    assert style.meaning("Waiting") == style.meaning("wait") == style.WORK_COLORS["idle"]
    for program in ("one process", "PyTorch", "Accelerate", "DeepSpeed", "MPI", "ours"):
        assert style.meaning(program) == style.PROGRAM_COLORS[program]
    assert style.meaning("ours, measured") == style.PROGRAM_COLORS["ours"]
    assert style.meaning("two sockets, Measured") == style.SOURCE_COLORS["measured"]
    assert (style.rank_color(7), style.rank_color(8)) == (
        style.RANK_COLORS[7], style.RANK_COLORS[0]
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["after the backward", "no all-reduce", "waits", "frank 3", "a", "wait-free"]
)
def test_a_word_in_passing_means_nothing(name):
    assert style.meaning(name) is None


def test_every_series_has_a_colour_of_its_own():
    names = ["sockets, measured", "shared, measured", "formula", "rank 0", "other", "another"]
    colors = style.colors_of(names)
    assert len(set(colors.values())) == len(names)
    assert colors["formula"] == style.SOURCE_COLORS["formula"]
    assert colors["rank 0"] == style.RANK_COLORS[0]
    assert style.colors_of(["measured", "formula"])["measured"] == style.SOURCE_COLORS["measured"]
    assert len(style.colors_of([f"cut {n}" for n in range(20)])) == 20
    two = style.colors_of(["a, published", "b, published", "ours", "c"])
    assert list(two.values()) == [
        *style.SERIES_COLORS[:2], style.PROGRAM_COLORS["ours"], style.SERIES_COLORS[2]
    ]  # fmt: skip
    # Two names of one rank keep its colour: they differ in mark and line.
    assert set(style.colors_of(["rank 1, measured", "rank 1, formula"]).values()) == {
        style.RANK_COLORS[1]
    }
    again = list(style.colors_of("abcdefghi").values())
    assert again == [*style.SERIES_COLORS, *style.SERIES_COLORS[:2]]


def test_the_source_gives_mark_and_line():
    assert style.look("rank 0, measured", 3) == {"marker": "o", "linestyle": "-"}
    assert style.look("measured", 100) == {"marker": "", "linestyle": "-"}
    assert style.look("by the formula", 3) == {"marker": "", "linestyle": "--"}
    assert style.look("published", 100)["marker"] == "D"
    assert style.look("published", 100)["linestyle"] == "none"
    assert style.look("simulated", 3) == {"marker": "s", "linestyle": ":"}
    assert style.look("published", 3)["markerfacecolor"] == style.PAPER
    assert [style.look("loss", points)["marker"] for points in (25, 26)] == ["o", ""]
    assert style.look("loss", 3)["linestyle"] == "-"
    assert style.look("measuredness", 3) == style.look("", 3)


def test_shades_run_from_dark_to_light_and_stay_on_paper():
    light = [lab(color, "all cones")[0] for color in style.shades(6)]
    assert light == sorted(light)
    assert light[-1] < 85
    assert light[-1] > 75  # the whole range is used
    assert style.shades(1) == ["#440154"]  # viridis begins with it
    assert style.shades(2)[0] == "#440154"
    assert style.shades(0) == []


def test_the_callers_settings_come_back():
    """Also where an error ends the block, and where another test has left settings behind."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        before = dict(matplotlib.rcParams)
        with contextlib.suppress(KeyError), style.course_style():
            assert matplotlib.rcParams["axes.spines.top"] is False
            cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
            assert tuple(cycle) == style.SERIES_COLORS
            raise KeyError
        assert dict(matplotlib.rcParams) == before


def test_the_same_work_has_the_same_colour_and_other_work_another():
    work = dict(style.WORK_COLORS)
    assert work.pop("compute") == work["forward"]
    assert len(set(work.values())) == len(work)
    assert style.MEMORY_COLORS["optimizer"] == work["optimizer"]


def test_a_figure_of_the_style():
    with style.course_style():
        figure = Figure()
        axes = figure.subplots()
        settings = dict(matplotlib.rcParams)
    assert (figure.dpi, tuple(figure.get_size_inches())) == (80, (6.2, 2.8))
    for color in (figure.get_facecolor(), axes.get_facecolor()):
        assert color == (1, 1, 1, 1)  # white and opaque, on a dark page too
    assert settings["savefig.facecolor"] == "#ffffff"
    assert settings["savefig.transparent"] is False
    assert figure.get_layout_engine() is not None  # no label is cut off
    assert axes.xaxis.get_gridlines()[0].get_visible()
    assert axes.get_axisbelow() is True  # the grid is behind the data
    assert settings["image.cmap"] == "viridis"
    assert settings["font.family"] == ["DejaVu Sans"]
