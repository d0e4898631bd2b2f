import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def in_memory():
    """A new folder on a file system in memory, if there is one: no test of it waits for a disk."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
