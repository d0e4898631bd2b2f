"""A Picture is a sharp PNG with its size and its words, whatever pyplot and IPython have done."""

import json
import subprocess
import sys

from helpers import plots
from helpers.plots.picture import Picture

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
