"""Ranks that the cases of a file share."""

import pytest

from helpers.runtime.cluster import Cluster
from helpers.runtime.local.forkserver import client


@pytest.fixture(scope="module")
def ranks():
    """Ranks by their number and order, started once for all cases of this kind.

    Only one kind of ranks is there at a time: the threads of idle groups wake up often.
    """
    kept: dict[tuple, Cluster] = {}

    def get(number: int, ordered: bool = False) -> Cluster:
        if (number, ordered) not in kept:
            close()
            client.warm().retire_early()  # else each rank would import for itself
            kept[number, ordered] = Cluster(workers=number, device="cpu")
        return kept[number, ordered]

    def close():
        for cluster in kept.values():
            cluster.close()
        kept.clear()

    yield get
    close()
