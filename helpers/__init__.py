"""Training at Scale: what the notebooks call.

A lazy face: each name is imported from its place in the house when it is first used, so that
`import helpers` costs milliseconds. Inside the house nothing imports this file.
"""

import importlib
import sys

from helpers.runtime.course import explain_missing, set_defaults, share_package

set_defaults()  # first of all: libraries read these variables when they are imported
share_package()
explain_missing()

_PLACE = {
    "launch": "helpers.runtime.launch",
    "Cluster": "helpers.runtime.cluster",
    "Runs": "helpers.runtime.runs",
    "Worker": "helpers.runtime.worker",
    "WorkerError": "helpers.runtime.failure",
    "CannotTravel": "helpers.runtime.payload",
    "check": "helpers.check",
    "plots": "helpers.plots",
    "show": "helpers.plots.page",
    "side_by_side": "helpers.check.prediction",
    "reveal": "helpers.check.prediction",
    "prediction_sheet": "helpers.check.sheet",
}

__all__ = sorted(_PLACE)


def __getattr__(name):
    if name not in _PLACE:
        raise AttributeError(f"module 'helpers' has no attribute {name!r}")
    if name in ("launch", "Cluster") and hasattr(sys, "ps1") | ("ipykernel" in sys.modules):
        _warm()
    module = importlib.import_module(_PLACE[name])
    value = module if _PLACE[name] == f"helpers.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def _warm():
    """In a session with a person waiting, start the server of ranks while the cell goes on."""
    importlib.import_module("helpers.runtime.local.forkserver.processes").warm()
    sources = importlib.import_module("helpers.runtime.local.sources")
    if shell := getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)():
        shell.events.register("post_run_cell", sources.HERE.look)  # files that the cell imported


def __dir__():
    return sorted({*globals(), *__all__})
