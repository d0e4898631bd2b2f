"""`import helpers` is light: little time beyond torch, nothing heavy, every name on request."""

import json
import statistics
import subprocess
import sys
from functools import cache
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
# Torch is imported once, and each import of helpers is the first one in a fork of that process.
PROGRAM = """
import json, os, sys, time, torch
for _ in range(5):
    if os.fork() == 0:
        start = time.process_time()
        import helpers
        seconds = time.process_time() - start
        listed = set(helpers.__all__) <= set(dir(helpers))
        print(json.dumps([seconds, sorted(sys.modules), listed]), flush=True)
        os._exit(0)
    os.wait()
"""


@cache
def imports() -> list[tuple[float, list[str], bool]]:
    """Of each import in a fresh interpreter: CPU seconds, modules, are public names listed?

    The interpreter starts as a student's does, with no test runner in it.
    """
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.alone
def test_import_costs_milliseconds_beyond_torch():
    """CPU time of the import, so that waiting does not count; the median of five."""
    seconds = [seconds for seconds, _, _ in imports()]
    assert statistics.median(seconds) < BUDGET, seconds


@pytest.mark.alone
def test_import_pulls_in_nothing_heavy():
    for _, modules, _ in imports():
        assert "helpers" in modules
        assert set(HEAVY) & set(modules) == set()


@pytest.mark.alone
def test_names_are_listed_before_they_are_used():
    assert all(listed for _, _, listed in imports())


@pytest.mark.parametrize("name", helpers.__all__)
def test_every_public_name_resolves(name):
    assert getattr(helpers, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = helpers.no_such_name
    with pytest.raises(ImportError, match="no_such_name"):
        exec("from helpers import no_such_name")
