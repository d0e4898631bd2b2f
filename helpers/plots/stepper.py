"""A picture with a slider and a play button: one picture for each step."""

from collections.abc import Callable

INTERVAL = 700  # milliseconds between two steps of the animation


class Stepper:
    """Step through pictures with a slider or as an animation.

    A running kernel shows a play button and a slider above the picture. A saved notebook, a printed
    page and a kernel without ipywidgets show the picture alone.

    Args:
        draw: step -> Picture, for the steps 0 to last.
        last: the last step.
        start: the step that is shown first.

    Raises:
        ValueError: `start` is not among the steps.
    """

    def __init__(self, draw: Callable[[int], object], last: int, *, start: int = 0):
        if not 0 <= start <= last:
            raise ValueError(f"start is {start}; the steps are 0 to {last}")
        self.draw, self.last, self.start = draw, last, start

    def picture(self):
        """The picture that is shown first."""
        return self.draw(self.start)

    def __repr__(self):
        return repr(self.picture())

    def _repr_png_(self):
        return self.picture()._repr_png_()

    def _ipython_display_(self):
        from IPython.display import display

        slider = self.controls()
        # The picture is an output of its own: a saved notebook keeps it, but drops the widgets.
        handle = display(self.picture(), display_id=True)
        if slider is not None and handle is not None:
            slider.observe(lambda change: handle.update(self.draw(change["new"])), names="value")

    def controls(self):
        """Show a play button and a slider, and return the slider; None without ipywidgets."""
        from IPython.display import display

        try:
            from ipywidgets import HBox, IntSlider, Play, jslink
        except ImportError:
            return None
        slider = IntSlider(value=self.start, min=0, max=self.last, description="step")
        play = Play(value=self.start, min=0, max=self.last, interval=INTERVAL)
        jslink((play, "value"), (slider, "value"))
        display(HBox([play, slider]))
        return slider
