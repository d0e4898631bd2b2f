"""A Picture is a sharp PNG with its size and its words, whatever pyplot and IPython have done."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from helpers import plots
from helpers.plots.picture import Picture, crisp, small_png

PROGRAM = """
import sys
from helpers.plots.holdings import holdings
png = holdings({"a": [[1]]})._repr_png_()[0]
assert png.startswith(b"\\x89PNG"), png[:8]
assert "matplotlib.pyplot" not in sys.modules
"""

# What IPython makes of pictures, before and after pyplot has registered its own formatter.
SHELL = """
import json, os, struct
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import matplotlib
before = dict(matplotlib.rcParams)
from helpers import plots
pyplot_first = %r
if pyplot_first:
    import matplotlib.pyplot
picture = plots.curves({"rank 0": [1, 2]}, title="a test", ylabel="loss")
if not pyplot_first:
    import matplotlib.pyplot
found = []
for mine in (picture, plots.panels(1)):
    data, metadata = shell.display_formatter.format(mine)
    size = struct.unpack(">2I", data["image/png"][16:24])
    found.append([size, metadata["image/png"], data["text/plain"]])
changed = [key for key in before if matplotlib.rcParams[key] != before[key]]
foreign = matplotlib.pyplot.figure(figsize=(2, 1), dpi=50)
foreign.subplots().plot([1, 2])
data, metadata = shell.display_formatter.format(foreign)
print(json.dumps([found, changed, metadata]))
"""


def test_it_draws_itself():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def in_ipython(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_pyplot_does_not_change_it_nor_it_pyplot():
    for pyplot_first in (False, True):
        found, changed, foreign = in_ipython(SHELL % pyplot_first)
        for pixels, metadata, text in found:
            assert pixels == [2 * metadata["width"], 2 * metadata["height"]]
            assert metadata["alt"] == text
        assert found[0][1]["alt"].startswith("a test. A line chart")
        assert [key for key in changed if key != "backend"] == []
        assert foreign == {}  # somebody's own figure is drawn as before


def test_the_writers_own_words_come_first():
    picture = plots.curves([3, 2, 1], ylabel="loss")
    assert "loss" in repr(picture)
    picture.alt = "The loss falls."
    assert repr(picture) == "The loss falls."
    assert picture._repr_png_()[1]["alt"] == "The loss falls."


def test_its_axes_can_still_be_used():
    assert Picture(dpi=50).dpi == 50
    picture = Picture(figsize=(3, 2))
    axes = picture.subplots()
    axes.plot([1, 2])
    assert not axes.spines["top"].get_visible()
    assert picture.get_layout_engine() is not None
    assert Picture(layout="none").get_layout_engine() is None
    assert not Picture(layout="none").add_axes([0, 0, 1, 1]).spines["top"].get_visible()
    assert tuple(Picture().get_size_inches()) == (6.2, 2.8)
    assert Picture().add_subplot(1, 2, 2, ylabel="loss").get_ylabel() == "loss"
    assert Picture(layout="none").add_axes([0, 0, 1, 1], xlabel="step").get_xlabel() == "step"
    assert repr(Picture(alt="Mine.")) == "Mine."
    assert Picture(facecolor="#ff0000").get_facecolor() == (1, 0, 0, 1)
    axes.set_title("later")
    assert "later" in repr(picture)
    _, metadata = picture._repr_png_()
    assert (metadata["width"], metadata["height"]) == (240, 160)


def plot(**options):
    figure = Figure(figsize=(4, 2), dpi=80, **options)
    figure.subplots().plot([1, 2, 4], color="#ff0000", lw=6)
    return figure


def image_of(png):
    return Image.open(io.BytesIO(png))


def test_twice_the_pixels_of_its_size():
    png, size = crisp(plot())
    assert size == {"width": 320, "height": 160}
    assert image_of(png).size == (640, 320)
    other = Figure(figsize=(4, 2), dpi=50)
    other.subplots()
    png, size = crisp(other)
    assert size == {"width": 200, "height": 100}
    assert image_of(png).size == (400, 200)


@pytest.mark.parametrize("face", ["none", "#111111"])
def test_paper_is_opaque_and_white_even_if_the_figure_is_not(face):
    image = image_of(crisp(plot(facecolor=face))[0])
    assert "transparency" not in image.info
    assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_colours_survive_the_palette():
    colors = {color for _, color in image_of(crisp(plot())[0]).convert("RGB").getcolors(100_000)}
    assert min(abs(r - 255) + g + b for r, g, b in colors) < 12


def test_a_noisy_picture_loses_colours_until_it_is_small():
    noise = np.random.default_rng(0).normal(128, 60, (300, 300, 3)).clip(0, 255).astype("uint8")
    image = Image.fromarray(noise)
    large, small = small_png(image, limit=10**9), small_png(image, limit=60_000)
    assert len(small) < 60_000 < len(large)
    assert len(image_of(large).getcolors()) > len(image_of(small).getcolors())
    assert small_png(image, limit=1).startswith(b"\x89PNG")  # the best there is


def test_the_largest_palette_that_fits():
    noise = np.random.default_rng(1).integers(0, 256, (200, 400, 3)).astype("uint8")
    image = Image.fromarray(noise)

    def colors(png):
        return len(image_of(png).getcolors())

    whole = small_png(image, limit=10**9)
    assert colors(whole) == 256
    assert colors(small_png(image, limit=len(whole))) == 256
    assert colors(small_png(image, limit=len(whole) - 1)) == 128
    assert colors(small_png(image, limit=1)) == 16
    assert len(small_png(image)) < 56_000 < len(whole)  # a committed picture may have 60 kB


def test_options_are_those_of_savefig():
    png, size = crisp(plot(), bbox_inches="tight", pad_inches=0)
    assert size["width"] < 300
    assert image_of(png).size[0] // 2 == size["width"]


@pytest.mark.parametrize(("draw", "scale"), [("bar", "yscale"), ("barh", "xscale")])
def test_no_bars_on_a_logarithmic_axis(draw, scale):
    figure = Figure()
    axes = figure.subplots()
    getattr(axes, draw)([1, 2], [10, 100])
    crisp(figure)
    axes.set(**{scale: "log"})
    with pytest.raises(ValueError, match="bars on a logarithmic axis"):
        crisp(figure)


def test_the_last_axes_and_the_last_bars_count_too():
    figure = Figure()
    _, axes = figure.subplots(1, 2)
    axes.errorbar([1, 2], [3, 4], yerr=1)  # a container, but no bars
    axes.set_yscale("log")
    assert crisp(figure)[0]
    axes.bar([1, 2], [10, 100])
    with pytest.raises(ValueError, match="bars on a logarithmic axis"):
        crisp(figure)


def test_bars_over_a_logarithmic_axis_are_fine():
    figure = Figure()
    axes = figure.subplots()
    axes.bar([1, 10, 100], [1, 2, 3])
    axes.set_xscale("log")  # their length is on the other axis
    assert crisp(figure)[0]
