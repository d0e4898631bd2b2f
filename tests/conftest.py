"""Fixtures that several folders of tests share."""

import importlib.util
from pathlib import Path

import cloudpickle
import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# No timing decides a test: an example may take long while other tests run.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


def ci(name: str):
    """Load .ci/NAME.py as a module; Python cannot import from a folder named .ci."""
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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


@pytest.fixture(autouse=True, scope="module")
def travels_by_value(request):
    """Pickle the functions of a test module by value, as those of a notebook.

    Pickled by name, each rank would import the module, and pytest with it: 0.1 s.
    """
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
