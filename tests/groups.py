"""Keep some tests in one process when pytest-xdist distributes the tests.

The cells of a notebook share a kernel, and the tests of a file may share a fixture that takes
seconds to make: one of their own, or of a conftest.py above. Such a file runs in one process, in
order. Every other test may run in any process, at any time.

This replaces xdist's own marks, `xdist_group`: under pytest 9.2, xdist 3.8 does not see them.

Each process collects all tests, and begins with other files than the others: pytest rewrites the
asserts of a file at its first import, which takes half the time of collecting. So each file is
rewritten once, and not by every process at the same moment.

Loaded by `-p tests.groups` in pyproject.toml, because a conftest.py in tests/ does not cover the
notebooks.
"""

import ast
from functools import cache
from pathlib import Path

import pytest


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Let each process of xdist begin to collect at another place."""
    process = getattr(session.config, "workerinput", None)
    if process is None:
        return
    tests, files = session.config.rootpath / "tests", []
    for argument in session.config.args:
        every = Path(argument).resolve() == tests
        files += map(str, sorted(tests.rglob("test_*.py"))) if every else [argument]
    number, of = int(process["workerid"].removeprefix("gw")), process["workercount"]
    begin = number * len(files) // of
    session.config.args[:] = files[begin:] + files[:begin]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session, items):
    """Bring the files back into one order: xdist demands the same of each process."""
    if hasattr(session.config, "workerinput"):
        items.sort(key=lambda item: item.nodeid.split("::")[0])


@cache
def stays_together(file: Path) -> bool:
    """Whether this is a notebook, or a file whose tests share a fixture."""
    if file.suffix == ".ipynb":
        return True
    if not file.is_file():
        return False
    above = [folder / "conftest.py" for folder in file.parents if (folder / "conftest.py").exists()]
    return bool(shared(file)) or any(shared(conftest) & wanted(file) for conftest in above)


def wanted(file: Path) -> set[str]:
    """Return the names of fixtures that a file may ask for: arguments, and strings for a mark."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            found |= {argument.arg for argument in node.args.args}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


@cache
def shared(file: Path) -> frozenset[str]:
    """Return the fixtures of a file that live as long as a module, or need one that does."""
    found: set[str] = set()
    functions = ast.parse(file.read_text(encoding="utf-8")).body
    for function in functions:  # a fixture stands below the fixtures that it needs
        if isinstance(function, ast.FunctionDef):
            marks = [ast.unparse(mark) for mark in function.decorator_list]
            mark = next((mark for mark in marks if mark.startswith("pytest.fixture")), None)
            needs = {argument.arg for argument in function.args.args}
            if mark and "autouse" not in mark and ("'module'" in mark or needs & found):
                found.add(function.name)
    return frozenset(found)
