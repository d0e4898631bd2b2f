"""Ranks that cannot start are told of in one kind of error."""

import pytest

from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import start
from helpers.runtime.local.processes import Processes


def test_a_rank_that_ends_before_it_hears_its_place(monkeypatch):
    class Broken(Processes):
        def __init__(self, workers, method):
            super().__init__(workers, method)
            self.ranks[1].channel.socket.shutdown(2)  # as when its process has ended

    with monkeypatch.context() as patch:
        patch.setattr(start, "Processes", Broken)
        with pytest.raises(WorkerError, match="rank 1 could not start") as caught:
            launch(lambda worker: worker.rank, workers=3)
    assert caught.value.rank == 1
    assert list(launch(lambda worker: worker.rank)) == [0, 1]
