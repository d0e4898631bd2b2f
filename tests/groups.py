"""Which tests stay together when pytest-xdist deals them to several processes.

The cells of a notebook share a kernel, and the tests of a file may share a fixture of the whole
file, which takes seconds to make. Such a file goes to one process, in order. Every other test may
run in any process, at any time.

This stands in for xdist's own marks, `xdist_group`: under pytest 9.2, xdist 3.8 does not see them.
Loaded by `-p tests.groups` in pyproject.toml: a conftest.py in tests/ would not see the notebooks.
"""

import re
from functools import cache
from pathlib import Path

import pytest

SHARED = re.compile(r"^@pytest\.fixture\(.*scope=.module.\)", re.MULTILINE)


@pytest.hookimpl(optionalhook=True)  # without xdist nobody asks
def pytest_xdist_make_scheduler(config, log):
    """The scheduler that `--dist loadgroup` asks for, with the groups from here."""
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
    """Is it a notebook, or a file with a fixture for all of its tests?"""
    if file.suffix == ".ipynb":
        return True
    return file.is_file() and bool(SHARED.search(file.read_text(encoding="utf-8")))
