"""What several tests share."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def tool():
    """.ci/notebooks.py as a module; a folder named .ci cannot be imported from."""
    spec = importlib.util.spec_from_file_location("notebook_tool", ROOT / ".ci" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
