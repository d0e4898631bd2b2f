"""Ranks that cannot start are told of in one kind of error."""

from types import SimpleNamespace

import pytest

from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import start
from helpers.runtime.local.call import Call
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


@pytest.mark.parametrize(
    ("joined", "status", "headline"),
    [
        (False, 1, "rank 2 could not start: its process ended with exit code 1"),
        (True, 1, "rank 2 ended with exit code 1 before it returned"),
        (False, -9, "rank 2 was killed by SIGKILL"),
    ],
)
def test_an_end_before_joining_is_told_from_one_after_it(joined, status, headline):
    process = SimpleNamespace(rank=2, status=status, problem="", joined=joined)
    assert Call.end_of(None, process).headline().startswith(headline)
