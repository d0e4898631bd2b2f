"""Keep some tests in one process when pytest-xdist distributes the tests.

The cells of a notebook share a kernel, and the tests of a file may share a fixture that takes
seconds to make. Such a file runs in one process, in order. Every other test may run in any process,
at any time.

This replaces xdist's own marks, `xdist_group`: under pytest 9.2, xdist 3.8 does not see them.
Loaded by `-p tests.groups` in pyproject.toml, because a conftest.py in tests/ does not cover the
notebooks.
"""

import re
from functools import cache
from pathlib import Path

import pytest

SHARED = re.compile(r"^@pytest\.fixture\(.*scope=.module.\)", re.MULTILINE)


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such hook
def pytest_xdist_make_scheduler(config, log):
    """Return the scheduler for `--dist loadgroup`, with the groups of this file."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Groups(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0]
            return file if stays_together(config.rootpath / file) else nodeid

    return Groups(config, log)


@cache
def stays_together(file: Path) -> bool:
    """Whether this is a notebook, or a file with a fixture for all its tests."""
    if file.suffix == ".ipynb":
        return True
    return file.is_file() and bool(SHARED.search(file.read_text(encoding="utf-8")))
