"""When a rank of a launcher leaves, and for whom it waits; PyTorch's group is made up."""

import threading
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from helpers.runtime.joined import member
from tests.runtime.joined.test_member import bare


@pytest.fixture
def ended(monkeypatch):
    """How often the process group was destroyed."""
    destroyed = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: destroyed.append(True))
    return destroyed


@pytest.mark.parametrize("changes", [{"failure": "so"}, {"pid": 1}])
def test_after_a_failure_and_in_a_fork_nothing_is_agreed(ended, changes):
    one = bare(1, 2, **changes)
    one.leave()
    assert ended == []
    assert not one.store.check(["leaving"])


def test_rank_0_leaves_last_and_the_others_at_once(ended):
    store = dist.HashStore()
    first = threading.Thread(target=bare(0, 3, store=store).leave)
    first.start()
    bare(2, 3, store=store).leave()
    assert ended == [True]
    first.join(0.1)
    assert first.is_alive()
    bare(1, 3, store=store).leave()
    first.join(60)
    assert ended == [True] * 3


@pytest.mark.timeout(60)
def test_rank_0_waits_no_longer_than_a_while_and_for_no_store_that_is_gone(ended, monkeypatch):
    monkeypatch.setattr(member, "FAREWELL_SECONDS", 0.02)
    bare(0, 2).leave()
    assert ended == [True]

    def gone(*_):
        raise RuntimeError("Connection reset by peer")

    bare(0, 2, store=SimpleNamespace(add=gone)).leave()
    assert ended == [True, True]
