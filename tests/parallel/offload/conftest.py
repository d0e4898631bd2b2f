import os
import tempfile
from pathlib import Path

import pytest

from helpers.runtime.cluster import Cluster


@pytest.fixture
def in_memory():
    """A new folder on a file system in memory, if there is one: no test of it waits for a disk."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def ranks():
    """Ranks by their number, started once for all cases of this number."""
    kept: list[Cluster] = []

    def get(number: int) -> Cluster:
        if kept and kept[0].workers != number:
            kept.pop().close()
        if not kept:
            kept.append(Cluster(workers=number, device="cpu"))
        return kept[0]

    yield get
    for cluster in kept:
        cluster.close()
