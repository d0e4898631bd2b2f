"""An explorer: sliders redraw the picture, and without a kernel the first picture stays."""

import base64
import re

import ipywidgets
import pytest

from helpers import plots
from helpers.plots.explorer import INTERVAL, WIDGET, Explorer, without_sliders

DRAWN = []


def draw(size, unit):
    DRAWN.append((size, unit))
    return plots.bars({"size": size}, xlabel=unit, alt=f"{size} {unit}")


@pytest.fixture
def explorer():
    DRAWN.clear()
    return Explorer(
        draw, {"size": [1, 2, 3], "unit": {"gigabytes": "GB", "bytes": "B"}}, {"size": 2}
    )


def shown(widget):
    """(the PNG, the alternative text) of the picture below the sliders."""
    source, alt = re.search(r"base64,([^']+)' alt='([^']*)'", widget.children[-1].value).groups()
    return base64.b64decode(source), alt


def test_one_output_has_both_forms(explorer):
    data, metadata = explorer._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == data["text/plain"] == "2 GB"
    assert metadata["image/png"]["width"] == 496
    assert "model_id" in data[WIDGET]


def test_a_saved_notebook_has_the_picture_without_sliders():
    both, alone = {WIDGET: {}, "image/png": ""}, {WIDGET: {}, "text/plain": ""}
    outputs = [{"data": dict(both)}, {"data": dict(alone)}, {"name": "stdout"}]
    model = {"content": {"cells": [{"source": ""}, {"outputs": outputs}]}}
    without_sliders(model=model, path="a.ipynb", contents_manager=None)
    assert outputs == [{"data": {"image/png": ""}}, {"data": alone}, {"name": "stdout"}]
    for other in (None, "text", {"cells": None}):
        without_sliders(model={"content": other})
    without_sliders(model={})


def test_a_slider_redraws(explorer):
    widget = explorer.widget()
    size, unit, _ = widget.children
    first, alt = shown(widget)
    assert [slider.description for slider in (size, unit)] == ["size", "unit"]
    assert "width='496'" in widget.children[-1].value  # 6.2 inches of 80 dots
    assert (size.value, unit.value, alt) == (2, "GB", "2 GB")
    assert unit._options_labels == ("gigabytes", "bytes")  # what the page shows
    size.value = 3
    assert shown(widget)[1] == "3 GB"
    unit.index = 1
    assert shown(widget)[1] == "3 B"
    size.value, unit.index = 2, 0
    assert shown(widget)[0] == first


def test_a_play_button_moves_its_slider(monkeypatch):
    linked = []
    monkeypatch.setattr(ipywidgets, "jslink", lambda *ends: linked.append(ends))
    choices = {"unit": ["GB"], "size": range(4)}
    unit, played, _ = Explorer(draw, choices, {"size": 2}, play="size").widget().children
    button, slider = played.children
    assert (unit.description, slider.description, slider.index) == ("unit", "size", 2)
    assert linked == [((button, "value"), (slider, "index"))]
    assert (button.value, button.min, button.max, button.interval) == (2, 0, 3, INTERVAL)
    assert not button.repeat  # it stops at the last step


def test_an_alternative_text_is_text():
    def draw(size):
        return plots.bars({"size": size}, alt='"a" <b> & c')

    widget = Explorer(draw, {"size": [1, 2]}).widget()
    assert shown(widget)[1] == "&quot;a&quot; &lt;b&gt; &amp; c"


def test_a_picture_is_drawn_once(explorer):
    size = explorer.widget().children[0]
    size.value, size.value = 3, 2
    assert DRAWN == [(2, "GB"), (3, "GB")]


def test_the_first_values_are_the_default():
    assert Explorer(draw, {"size": [7, 8], "unit": ["GB"]}).start == {"size": 7, "unit": "GB"}


def test_without_a_notebook(explorer):
    assert repr(explorer) == "2 GB"
    assert repr(explorer.picture(1, "B")) == "1 B"
    assert repr(explorer.picture()) == "2 GB"
    with pytest.raises(ValueError, match="zip"):
        explorer.picture(1)


@pytest.mark.parametrize(
    ("choices", "start"), [({}, {}), ({"size": []}, {}), ({"size": [1]}, {"size": 2}),
                           ({"size": [1]}, {"sise": 1}),
                           ({"size": [1], "unit": []}, {})],
)  # fmt: skip
def test_nonsense_is_refused(choices, start):
    with pytest.raises(ValueError, match=r"at least one|none of"):
        Explorer(draw, choices, start)
