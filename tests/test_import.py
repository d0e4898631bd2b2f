"""`import helpers` is light: fast after torch, nothing heavy, and every name on request."""

import json
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import helpers
from helpers import check, plots

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
# Import torch once; then fork, so that each fork imports helpers for the first time.
PROGRAM = """
import json, os, sys, time, torch
for _ in range(5):
    if os.fork() == 0:
        start = time.process_time()
        import helpers
        seconds = time.process_time() - start
        modules = sorted(sys.modules)
        listed = set(helpers.__all__) <= set(dir(helpers))
        import helpers.check.week01
        checks = [name for name in sys.modules if name.startswith("helpers.check.week")]
        print(json.dumps([seconds, modules, listed, checks]), flush=True)
        os._exit(0)
    os.wait()
"""


@cache
def imports() -> list[tuple[float, list[str], bool, list[str]]]:
    """For each import in a fresh interpreter: (CPU seconds, modules, are names listed?, checks).

    The checks are the weeks that the import of one week's check loads. The interpreter starts like
    a student's, without a test runner in it.
    """
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.alone
def test_import_costs_milliseconds_beyond_torch():
    """The median of five, in CPU time, so that waiting does not count."""
    seconds = [seconds for seconds, *_ in imports()]
    assert statistics.median(seconds) < BUDGET, seconds


@pytest.mark.alone
def test_import_pulls_in_nothing_heavy():
    for _, modules, *_ in imports():
        assert "helpers" in modules
        assert set(HEAVY) & set(modules) == set()


@pytest.mark.alone
def test_names_are_listed_before_they_are_used():
    assert all(listed for _, _, listed, _ in imports())


@pytest.mark.alone
def test_a_rank_imports_the_check_that_it_runs():
    assert imports()[0][-1] == ["helpers.check.week01"]


@pytest.mark.parametrize("name", check.__all__)
def test_every_check_resolves(name):
    assert getattr(check, name).__name__ == name


def test_a_check_is_made_once_and_returns_what_it_found(monkeypatch):
    """What is solved is remembered under the exercise's name."""
    noted = []
    monkeypatch.setattr("helpers.check.solved.note", lambda *given: noted.append(given))
    assert check.bubble_share is check.bubble_share
    verdict = check.bubble_share(fn=lambda *_: 3)
    assert (verdict.exercise, verdict.status) == ("bubble_share", "wrong")
    assert noted == [("bubble_share", verdict)]
    assert not hasattr(check.project, "__wrapped__")  # no exercise of a week
    assert {"progress", *check._PLACE} == set(check.__all__)
    assert set(check.__all__) <= set(dir(check))


def test_progress_lists_the_exercises_of_each_week():
    weeks = check.progress().weeks
    assert list(weeks) == [f"week {number}" for number in range(1, 15)]
    assert weeks["week 6"] == ["bytes_per_rank", "bytes_per_step", "shard_flat", "zero_1"]
    assert sum(map(len, weeks.values())) == len(check._PLACE) - 3


@pytest.mark.parametrize("name", helpers.__all__)
def test_every_public_name_resolves(name):
    assert getattr(helpers, name) is not None


@pytest.mark.parametrize("name", plots.__all__)
def test_every_picture_resolves(name):
    assert getattr(plots, name).__name__ == name
    assert name in dir(plots)
    with pytest.raises(AttributeError, match=f"'helpers.plots' has no attribute 'no_{name}'"):
        getattr(plots, f"no_{name}")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = helpers.no_such_name
    with pytest.raises(AttributeError, match=r"^there is no check 'no_such_name'"):
        _ = check.no_such_name
    with pytest.raises(ImportError, match="no_such_name"):
        exec("from helpers import no_such_name")
