"""What several tests share."""

import importlib.util
from pathlib import Path

import cloudpickle
import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# No timing decides a test: an example may take long where other tests run beside it.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


def ci(name: str):
    """.ci/NAME.py as a module; a folder named .ci cannot be imported from."""
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tool():
    """What executes notebooks."""
    return ci("notebooks")


@pytest.fixture(scope="session")
def suite():
    """What runs the tests."""
    return ci("suite")


@pytest.fixture(scope="session")
def quick():
    """What chooses the tests that a change needs."""
    return ci("quick")


@pytest.fixture(autouse=True, scope="module")
def travels_by_value(request):
    """Functions of a test module travel as those of a notebook do.

    By name they would have each rank import the module, and pytest with it: 0.1 s.
    """
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
