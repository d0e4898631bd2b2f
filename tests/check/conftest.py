"""Ranks that the wrong answers to an exercise share."""

import pytest

from helpers.check import elsewhere, ranks
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.local.forkserver import client


@pytest.fixture(scope="module")
def kept():
    """{number of ranks: the Cluster that has them}"""
    clusters = {}
    yield clusters
    for cluster in clusters.values():
        cluster.close()


@pytest.fixture
def shared_ranks(kept, monkeypatch):
    """The checks launch nothing: they run on ranks that are there already, in milliseconds.

    An answer that left a message under way takes its ranks along: the next one would receive it.
    """
    used = {}

    def run(fn, workers, *, device, timeout=60.0, **kwargs):
        if workers not in kept:
            client.warm().retire_early()  # else each rank would import for itself
            kept[workers] = Cluster(workers, device=device)
        used[workers] = kept[workers]
        return used[workers].run(fn, timeout=timeout, **kwargs)

    monkeypatch.setattr(elsewhere, "launch", run)
    yield
    for cluster in used.values():
        close_if_open(cluster)


@pytest.fixture
def no_hints(monkeypatch):
    """No hint is looked for where a function is wrong: all mistakes would run on ranks."""
    monkeypatch.setattr(ranks.OnRanks, "hint", lambda *_: "")


@pytest.fixture
def as_predicted(monkeypatch):
    """No training in week 7: a rank holds what the formula says."""
    from helpers.check.week07 import wrapping  # few tests need PyTorch's FSDP from here

    block = wrapping.budgets()[0][1][1]
    monkeypatch.setattr(
        wrapping, "measured", lambda ranks, k: round(wrapping.of_units(6 // k, k * block, ranks))
    )


def close_if_open(cluster: Cluster):
    """End ranks that have a message under way; the next call begins with new ones."""
    try:
        left = sum(cluster.run(left_open, timeout=ranks.TIMEOUT))
    except WorkerError:
        return  # these ranks are gone already
    if left:
        cluster.close()


def left_open(worker) -> int:
    """How many messages of this rank nobody has waited for."""
    from helpers.check import ranks

    works = [work for works in ranks._kept for work in works]
    ranks._kept.clear()
    return sum(not work.is_completed() for work in works)
