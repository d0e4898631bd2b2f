"""A picture with sliders: it changes while a kernel runs, and stays a picture without one."""

import base64
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from helpers.plots.page import image as picture_html

WIDGET = "application/vnd.jupyter.widget-view+json"
INTERVAL = 700  # milliseconds between two steps of the animation


class Explorer:
    """Sliders above a picture. Jupyter shows them while a kernel runs, else the first picture.

    One output has both forms, so that a page without a kernel (a committed notebook, a slide, a
    printed page) still shows the picture for the values of `start`.

    Args:
        draw: `draw(name=value, …)` returns a Picture.
        choices: name of an argument -> its values in order, or {label: value}.
        start: name -> the first value; by default the first of its choices.
        play: the name of an argument that a play button steps through.

    Raises:
        ValueError: there are no choices, or `start` names a value that is none of them.
    """

    def __init__(
        self,
        draw: Callable,
        choices: Mapping[str, Sequence | Mapping],
        start: Mapping[str, object] | None = None,
        play: str = "",
    ):
        self.choices = {
            name: dict(values) if isinstance(values, Mapping) else {str(v): v for v in values}
            for name, values in choices.items()
        }
        if not self.choices or not all(self.choices.values()):
            raise ValueError("an explorer needs at least one value for each of its sliders")
        first = {name: next(iter(values.values())) for name, values in self.choices.items()}
        self.start = first | dict(start or {})
        for name, value in self.start.items():
            if value not in self.choices.get(name, {}).values():
                raise ValueError(f"{name}={value!r} is none of the choices")
        self._draw, self._play = draw, play
        self._png = cache(lambda *values: self.picture(*values)._repr_png_())

    def picture(self, *values):
        """The picture for these values, in the order of `choices`; by default for `start`."""
        values = values or [self.start[name] for name in self.choices]
        return self._draw(**dict(zip(self.choices, values, strict=True)))

    def widget(self):
        """The sliders and the picture as one ipywidget."""
        import ipywidgets

        sliders = {
            name: ipywidgets.SelectionSlider(
                options=list(values.items()), value=self.start[name], description=name
            )
            for name, values in self.choices.items()
        }
        controls = dict(sliders)
        if moved := sliders.get(self._play):
            last = len(moved.options) - 1
            button = ipywidgets.Play(value=moved.index, max=last, interval=INTERVAL)
            ipywidgets.jslink((button, "value"), (moved, "index"))
            controls[self._play] = ipywidgets.HBox([button, moved])
        image = ipywidgets.HTML()  # an Image widget has no alternative text

        def redraw(*_):
            png, about = self._png(*(slider.value for slider in sliders.values()))
            image.value = picture_html(png, **about)

        redraw()
        for slider in sliders.values():
            slider.observe(redraw, "value")
        return ipywidgets.VBox([*controls.values(), image])

    def _repr_mimebundle_(self, include=None, exclude=None):
        """Both forms; a front end shows the sliders if it can."""
        png, about = self._png(*(self.start[name] for name in self.choices))
        data = {"image/png": text_of(png), "text/plain": about["alt"]}
        metadata = {"image/png": about}
        view = self.widget()._repr_mimebundle_()
        view = view[0] if isinstance(view, tuple) else view
        return data | {WIDGET: view[WIDGET]} if WIDGET in view else data, metadata

    def __repr__(self):
        return repr(self.picture())


def without_sliders(model, **_):
    """Leave the picture alone in what Jupyter's server saves: its `pre_save_hook`.

    A kernel keeps the sliders' state. After its end, a page that has their name in the file shows
    "model not found" in place of the picture.
    """
    with contextlib.suppress(AttributeError, KeyError, TypeError):  # it is no notebook
        for cell in model["content"]["cells"]:
            for output in cell.get("outputs", ()):
                if "image/png" in output.get("data", ()):
                    output["data"].pop(WIDGET, None)


def text_of(png: bytes) -> str:
    return base64.b64encode(png).decode("ascii")
