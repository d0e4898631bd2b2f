"""Roofline, timeline and trace, Gantt chart, pipeline, memory bars, heat map, curves, explorers.

Plain data in, pictures out: `from helpers import plots`, then `plots.curves(…)`. Each function
draws in the course's style and returns a `Picture`, a Matplotlib figure whose axes can still be
changed. Nothing here is imported before it is used.
"""

import importlib

_PLACE = {
    "Picture": "picture",
    "panels": "picture",
    "curves": "curve",
    "bars": "bar",
    "intervals": "bar",
    "memory_bars": "memory",
    "what_fits": "memory",
    "heat": "heatmap",
    "pictures": "heatmap",
    "contours": "heatmap",
    "blocks": "serving",
    "pipelines": "timeline",
    "Explorer": "explorer",
}

__all__ = sorted(_PLACE)


def __getattr__(name):
    if name not in _PLACE:
        raise AttributeError(f"module 'helpers.plots' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"helpers.plots.{_PLACE[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
