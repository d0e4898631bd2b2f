"""Fixtures that several folders of tests share."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import cloudpickle
import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# No timing decides a test: an example may take long while other tests run. The examples of a test
# are the same in each run; `make seeds` draws others.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, derandomize=os.environ.get("HYPOTHESIS_SEEDS") != "random"
)
hypothesis.settings.load_profile("unhurried")

# A shell starts a background job with interrupts ignored, and all that the job starts inherits
# this. The tests of interrupts would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ci(name: str):
    """Load .ci/NAME.py as a module; Python cannot import from a folder named .ci."""
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / ".ci"))  # as for a script: the files import each other
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / ".ci"))
    return module


@pytest.fixture(scope="session")
def tool():
    """The program that executes notebooks."""
    return ci("notebooks")


@pytest.fixture(scope="session")
def suite():
    """The program that runs the tests."""
    return ci("suite")


@pytest.fixture(scope="session")
def quick():
    """The program that chooses the tests for a change."""
    return ci("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Give each test, and its module's fixtures, the same random numbers in any order of tests."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(1729)


@pytest.fixture(autouse=True, scope="module")
def travels_by_value(request):
    """Pickle the functions of a test module by value, as those of a notebook.

    Pickled by name, each rank would import the module, and pytest with it: 0.1 s.
    """
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="module")
def kept_by_file():
    """What the tests of a file share: ranks by their number and device, and records of twins."""
    clusters, twins = {}, {}
    yield clusters, twins
    for cluster in clusters.values():
        cluster.close()


@pytest.fixture
def kept_ranks(kept_by_file, request, monkeypatch):
    """Run this test's launches, and those of `compare`, on ranks that live as long as its file.

    A call on ranks that are there already costs milliseconds. If a call fails, the next one starts
    new ranks. `compare` trains each twin once: the same options give the same record. This fixture
    is not for tests of what a fresh process does.
    """
    from helpers.runtime.cluster import Cluster  # few tests need PyTorch from here
    from helpers.runtime.local.forkserver import client
    from helpers.training import drift, twin
    from tests.groups import leave_groups

    clusters, twins = kept_by_file

    def run(fn, /, workers=2, *, device=None, **options):
        if fn is twin.train_twin:
            asked = cloudpickle.dumps((workers, device, options))
            if asked not in twins:
                twins[asked] = on(workers, device).run(fn, **options)
            return twins[asked]
        return on(workers, device).run(fn, **options)

    def on(workers, device):
        if (workers, device) not in clusters:
            client.warm().retire_early()  # else each rank would import for itself
            clusters[workers, device] = Cluster(workers, device=device)
        return clusters[workers, device]

    for module in (request.module, twin, drift):
        if hasattr(module, "launch"):
            monkeypatch.setattr(module, "launch", run)
    yield
    for cluster in clusters.values():
        if cluster.processes:
            cluster.run(leave_groups)
