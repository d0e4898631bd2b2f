"""A sandbox that the tests of a file share: its start imports PyTorch."""

import contextlib
import time

import pytest

from helpers.check.grading import grade, sandbox

NEEDS_SANDBOX = pytest.mark.skipif(
    sandbox.bubblewrap() is None, reason="no sandbox: bubblewrap (bwrap) is missing or forbidden"
)


@pytest.fixture(scope="module")
def sandboxes():
    """A sandbox for many submissions: it starts again only if one of them has ended it."""
    running = []

    def start(*given):
        if not running or running[-1].process.poll() is not None:
            running.append(sandbox.Sandbox(*given))
        running[-1].last = time.monotonic() + running[-1].limits.seconds
        return contextlib.nullcontext(running[-1])

    yield start
    for one in running[-1:]:
        one.end()


@pytest.fixture
def one_sandbox(sandboxes, monkeypatch):
    monkeypatch.setattr(grade, "Sandbox", sandboxes)
