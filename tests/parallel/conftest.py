"""Ranks that the cases of a file share."""

import pytest

from helpers.runtime.cluster import Cluster
from helpers.runtime.local.forkserver import client


@pytest.fixture(scope="module")
def ranks():
    """Ranks by their number, started once for all cases of this number.

    Only one number of ranks is there at a time: the threads of idle groups wake up often.
    """
    kept: list[Cluster] = []

    def get(number: int) -> Cluster:
        if kept and kept[0].workers != number:
            kept.pop().close()
        if not kept:
            client.warm().retire_early()  # else each rank would import for itself
            kept.append(Cluster(workers=number, device="cpu"))
        return kept[0]

    yield get
    for cluster in kept:
        cluster.close()
