"""After `plots.use()`, pyplot's figures are sharp, described, and in the course's style."""

import json
import subprocess
import sys

PROGRAM = """
import json, os, struct
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
own = Config()  # settings that the inline backend applies when it is first loaded
own.InlineBackend.rc = {"legend.frameon": True}
shell = InteractiveShell.instance(config=own)
from helpers import plots
if %r:
    from matplotlib import pyplot as plt
import matplotlib.lines
plots.use()
framed = matplotlib.rcParams["legend.frameon"]
from matplotlib_inline.backend_inline import configure_inline_support
from matplotlib_inline.config import InlineBackend
InlineBackend.instance(parent=shell).rc = {}
configure_inline_support(shell, "inline")  # as `%%matplotlib inline` does
from matplotlib import pyplot as plt
found = []
for layout in (None, "none"):
    figure, axes = plt.subplots(figsize=(3, 2), **({"layout": layout} if layout else {}))
    axes.plot([1, 2], label="one")
    axes.set(xlabel="step")
    legend = axes.legend()
    data, metadata = shell.display_formatter.format(figure)
    size = struct.unpack(">2I", data["image/png"][16:24])
    found.append([size, metadata["image/png"], legend.get_frame_on()])
bare = plt.figure(figsize=(1, 1))
bare.lines.append(matplotlib.lines.Line2D([0, 1], [0, 1], transform=bare.transFigure, figure=bare))
found.append("image/png" in shell.display_formatter.format(bare)[0])
figure.alt = "My words."
found.append(shell.display_formatter.format(figure)[1]["image/png"]["alt"])
empty = shell.display_formatter.format(plt.figure())[0]
print(json.dumps([found, axes.spines["top"].get_visible(), sorted(empty), framed]))
"""


def test_figures_of_pyplot():
    for imported_before in (False, True):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM % imported_before], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found, spine, empty, framed = json.loads(done.stdout.splitlines()[-1])
        assert framed is False  # the style is applied after the inline backend's settings
        for pixels, metadata, framed in found[:2]:
            assert [n // 2 for n in pixels] == [metadata["width"], metadata["height"]]
            assert "A line chart over step" in metadata["alt"]
            assert not framed
            assert metadata["width"] <= 240
        # The course's layout keeps the size; without a layout the picture ends with its contents.
        assert found[0][1]["width"] == 240 != found[1][1]["width"]
        assert found[2] is True  # a line without axes is a picture, too
        assert found[3] == "My words."
        assert not spine
        assert "image/png" not in empty  # as IPython does with a figure of nothing


def test_outside_a_notebook_it_sets_the_style_alone():
    program = "import matplotlib; from helpers import plots; plots.use(); " + (
        "assert matplotlib.rcParams['legend.frameon'] is False"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
