"""Show text, progress and curves: drawn in place in Jupyter, lines in a terminal."""

import os
import sys
import time
from typing import TextIO

DRAW_SECONDS = 0.25
DRAW_SHARE = 0.2  # of the time at most, so that drawing never delays the ranks
LINE_SECONDS = 2.0  # between two lines for the same bar in a terminal


def put(text: str, stream: TextIO | None = None):
    """Write `text` and flush; letters that the stream's encoding lacks become \\x or \\u."""
    stream = stream or sys.stdout
    if stream is None:  # closed before Python started
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a terminal in ASCII, for example
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def say(text: str):
    put(f"{text}\n")


def shell():
    """Return the IPython session that this process runs, in a notebook or at a prompt, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def watched() -> bool:
    """Does a person look on? A notebook that a program executes keeps all that is printed."""
    return "JPY_SESSION_NAME" in os.environ or bool(sys.stdout and sys.stdout.isatty())


def in_jupyter() -> bool:
    """Does this process run a notebook, so that pictures can show?"""
    return hasattr(shell(), "kernel")


class Screen:
    """Show the progress of one call.

    Args:
        live: the logged value to draw as a curve for each rank, over `step` if the rows have one.
    """

    def __init__(self, live: str | None = None):
        self.live = live
        self.curves: dict[int, tuple[list, list]] = {}
        self.bars: dict[tuple[str, int], tuple] = {}  # (label, rank) -> (done, total or None)
        self.panel = JupyterPanel() if in_jupyter() else LinePanel()
        self.fresh = {"curve": False, "bars": False}
        self.not_before = 0.0

    def point(self, record: dict):
        value = record.get(self.live)
        if isinstance(value, int | float):  # a row may hold None, or a word
            steps, values = self.curves.setdefault(record["rank"], ([], []))
            steps.append(record.get("step", len(steps)))
            values.append(value)
            self.fresh["curve"] = True

    def progress(self, rank: int, label: str, done: int, total: int | None):
        self.bars[label, rank] = (done, total)
        self.fresh["bars"] = True

    def draw(self, last: bool = False):
        began = time.monotonic()
        if not any(self.fresh.values()) or (began < self.not_before and not last):
            return
        # What a panel holds back stays fresh: it may be the last state.
        if self.fresh["bars"]:
            self.fresh["bars"] = self.panel.bars(self.bars, last) is False
        if self.fresh["curve"]:
            self.fresh["curve"] = self.panel.curve(self.live, self.curves, last) is False
        now = time.monotonic()
        self.not_before = now + max(DRAW_SECONDS, (now - began) / DRAW_SHARE)

    def finish(self):
        """Draw the latest values a last time; this last state stays on the screen."""
        self.draw(last=True)
        if self.live and not self.curves:
            say(f"nothing to draw: no rank called worker.log({self.live}=…) with a number")


class JupyterPanel:
    """Draws each bar and curve in one place of the cell's output, and updates it there."""

    def __init__(self):
        self.places = {}

    def show(self, place: str, data: dict, metadata: dict | None = None):
        from IPython.display import display

        if place in self.places:
            self.places[place].update(data, metadata=metadata, raw=True)
        else:
            self.places[place] = display(data, metadata=metadata, raw=True, display_id=True)

    def bars(self, bars, last):
        from helpers.plots.page import bars_html, bars_text

        self.show("bars", {"text/html": bars_html(bars), "text/plain": bars_text(bars)})

    def curve(self, name, curves, last):
        from helpers.plots.page import curve_output

        self.show("curve", *curve_output(name, curves))


class LinePanel:
    """Prints a line from time to time, and always the last state. False: held back."""

    def __init__(self):
        self.next = {"bars": 0.0, "curve": 0.0}

    def due(self, what: str, last: bool) -> bool:
        now = time.monotonic()
        if now < self.next[what] and not last:
            return False
        self.next[what] = now + LINE_SECONDS
        return True

    def bars(self, bars, last) -> bool:
        from helpers.plots.page import bars_text

        if due := self.due("bars", last):
            say(bars_text(bars))
        return due

    def curve(self, name, curves, last) -> bool:
        if due := self.due("curve", last):
            parts = (f"rank {r} {v[-1]:.4g} (step {s[-1]})" for r, (s, v) in sorted(curves.items()))
            say(f"{name}: {', '.join(parts)}")
        return due
