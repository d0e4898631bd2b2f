"""`import helpers` is light: little time beyond torch, nothing heavy, every name on request."""

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import helpers

ROOT = Path(__file__).resolve().parent.parent
BUDGET = 0.060  # seconds
HEAVY = [
    "accelerate",
    "datasets",
    "IPython",
    "ipywidgets",
    "matplotlib",
    "pandas",
    "torch._dynamo",
    "transformers",
]


def python(code):
    """What a fresh interpreter prints; it starts as a student's does, with no test runner in it."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_costs_milliseconds_beyond_torch():
    """CPU time of the import, so that a busy machine does not count; the median of five."""
    code = (
        "import time, torch; start = time.process_time(); import helpers;"
        "print(time.process_time() - start)"
    )
    seconds = [float(python(code)) for _ in range(5)]
    assert statistics.median(seconds) < BUDGET, seconds


def test_import_pulls_in_nothing_heavy():
    found = python(f"import sys, helpers; print([m for m in {HEAVY} if m in sys.modules])")
    assert found.strip() == "[]"


@pytest.mark.parametrize("name", helpers.__all__)
def test_every_public_name_resolves(name):
    assert getattr(helpers, name) is not None


def test_names_are_listed_before_they_are_used():
    code = "import helpers; print(set(helpers.__all__) <= set(dir(helpers)))"
    assert python(code).strip() == "True"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = helpers.no_such_name
    with pytest.raises(ImportError, match="no_such_name"):
        exec("from helpers import no_such_name")
