"""What must run together when pytest-xdist deals the tests to several processes.

A group runs in one process, in order. Every other test may run anywhere, at any time. Loaded by
`-p tests.groups` in pyproject.toml: a conftest.py in tests/ would not see the notebooks.
"""

import pytest

# Fixtures of a module that take seconds to make: one process makes them, and runs all that use them.
COSTLY = {"by_mpi", "cluster", "clusters", "late", "machine", "samples", "shared_kernel"}


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this same hook
def pytest_collection_modifyitems(config, items):
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if group := group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))


def group_of(item) -> str | None:
    """The file of a notebook's cell, or of a test with a costly fixture: else None."""
    file = item.nodeid.split("::")[0]
    if item.path.suffix == ".ipynb" or COSTLY & set(getattr(item, "fixturenames", ())):
        return file
    return None
