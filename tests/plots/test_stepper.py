"""The slider redraws the picture; without a slider the picture stands alone."""

import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from helpers import plots
from helpers.plots.picture import Picture
from helpers.plots.stepper import INTERVAL


def draw(step):
    return Picture(figsize=(2, 1), alt=f"step {step}")


def shown(stepper):
    """The data of each output that the cell displays."""
    with capture_output() as out:
        stepper._ipython_display_()
    return [output.data for output in out.outputs]


@pytest.fixture(autouse=True)
def shell():
    """A shell for the length of a test: with one, this process counts as an interactive session."""
    prompts = [name for name in ("ps1", "ps2", "ps3") if not hasattr(sys, name)]
    InteractiveShell.instance()
    yield
    InteractiveShell.clear_instance()
    for name in prompts:
        if hasattr(sys, name):
            delattr(sys, name)


@pytest.fixture
def slider(monkeypatch):
    """The slider that the stepper makes."""
    made = []
    controls = plots.Stepper.controls

    def keep(self):
        made.append(controls(self))
        return made[-1]

    monkeypatch.setattr(plots.Stepper, "controls", keep)
    return made


def test_widgets_and_a_picture_of_its_own(slider):
    widgets, picture = shown(plots.Stepper(draw, 5, start=2))
    assert "application/vnd.jupyter.widget-view+json" in widgets
    assert picture["text/plain"] == "step 2"
    assert "application/vnd.jupyter.widget-view+json" not in picture
    assert (slider[0].value, slider[0].min, slider[0].max) == (2, 0, 5)
    assert slider[0].description == "step"


def test_the_animation_moves_the_slider(slider, monkeypatch):
    import ipywidgets

    linked, boxes = [], []
    link, box = ipywidgets.jslink, ipywidgets.HBox
    monkeypatch.setattr(ipywidgets, "jslink", lambda *ends: linked.append(ends) or link(*ends))
    monkeypatch.setattr(ipywidgets, "HBox", lambda of: boxes.append(of) or box(of))
    shown(plots.Stepper(draw, 5, start=2))
    [((play, name), (moved, other))] = linked
    assert (moved, name, other) == (slider[0], "value", "value")
    assert boxes == [[play, moved]]
    assert (play.value, play.min, play.max, play.interval) == (2, 0, 5, INTERVAL)
    assert not play.repeat  # it stops at the last step


def test_the_slider_updates_the_picture(slider):
    shown(plots.Stepper(draw, 5))
    with capture_output() as out:
        slider[0].value = 4
    assert [output.data["text/plain"] for output in out.outputs] == ["step 4"]
    assert out.outputs[0].update


def test_without_widgets_the_picture_stands_alone(slider, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    (picture,) = shown(plots.Stepper(draw, 5, start=1))
    assert picture["text/plain"] == "step 1"
    assert slider == [None]


def test_outside_a_notebook():
    stepper = plots.Stepper(draw, 3, start=3)
    assert repr(stepper) == "step 3"
    assert stepper._repr_png_()[0].startswith(b"\x89PNG")
    assert repr(plots.Stepper(draw, 3)) == "step 0"
    with pytest.raises(ValueError, match="start is 2; the steps are 0 to 1"):
        plots.Stepper(draw, 1, start=2)
    for start in (4, -1):
        with pytest.raises(ValueError, match=f"start is {start}; the steps are 0 to 3"):
            plots.Stepper(draw, 3, start=start)
