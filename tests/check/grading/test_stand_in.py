"""The judge's side of the sandbox: what it asks, and what it makes of each answer."""

import copy
import pickle

import cloudpickle
import numpy as np
import pytest
import torch

from helpers.check import elsewhere
from helpers.check.elsewhere import Failed
from helpers.check.grading import inside, plain, stand_in
from helpers.check.grading.sandbox import Broken, Late
from helpers.check.grading.stand_in import Shut, StandIn, by_value, restore
from helpers.check.limit import TooLong
from helpers.check.week05 import schedules
from helpers.runtime.failure import WorkerError

NONE = plain.pack(["returned", None])
PROBE = "def probe(x):\n    x.append(4)\n    return sum(x)"


class Beside:
    """A sandbox without walls: the program runs in this process, or the answer is given."""

    def __init__(self):
        self.answer, self.orders, self.seconds = None, [], []

    def ask(self, order, seconds):
        self.orders.append(pickle.loads(order))
        self.seconds.append(seconds)
        if isinstance(self.answer, Exception):
            raise self.answer
        return inside.answer(order) if self.answer is None else self.answer


@pytest.fixture
def shut():
    return Shut(Beside(), "probe", [PROBE])


def test_a_call_is_like_a_call_here(shut):
    numbers = [1, 2]
    with elsewhere.at(shut):
        assert StandIn("probe")(numbers) == 7
    assert numbers == [1, 2, 4]
    assert shut.sandbox.seconds == [stand_in.DEFINE_SECONDS, elsewhere.SECONDS] == [180, 60]


def test_the_stand_in_goes_into_the_sandbox_and_is_never_copied(shut):
    probe = StandIn("probe")
    assert copy.deepcopy([probe])[0] is probe
    assert pickle.loads(pickle.dumps(probe)) is inside.submitted("probe")


def test_definitions_that_fail_or_do_not_end():
    with pytest.raises(Failed, match="defines no function probe"):
        Shut(Beside(), "probe", ["x = 3"])
    for answer, finding in (
        (Late("not returned after 180 seconds"), "the definitions have not ended after 180 s"),
        (plain.pack(["raised", "hang", "a rank hangs"]), "a rank hangs"),
        (plain.pack(["returned", (3, ())]), "no form"),
    ):
        beside = Beside()
        beside.answer = answer
        with pytest.raises(Failed, match=finding):
            Shut(beside, "probe", [PROBE])


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (Late("not returned after 60 seconds"), TooLong, "^$"),
        (Late("taken more than 600 seconds in all"), Failed, "your function has taken more than"),
        (Broken("ended the process"), Failed, "your function has ended the process"),
        (["not written"], NotImplementedError, "^$"),
        (["raised", "exception", "it raised"], Failed, "^it raised$"),
        (["raised", "answer", "it returned"], Failed, "^it returned$"),
        (["raised", "hang", "it hangs"], WorkerError, "it hangs"),
        (["raised", 3, "it"], Failed, "no form"),
        (["returned", None], Failed, "no form"),
        (["returned", (1, 2, 3)], Failed, "no form"),
        (["ready"], Failed, "no form"),
        (b"\xff" * 20, Failed, "is not what the exercise asks for"),
    ],
)
def test_what_is_no_answer(shut, answer, error, text):
    shut.sandbox.answer = plain.pack(answer) if isinstance(answer, list) else answer
    with pytest.raises(error, match=text) as caught:
        shut.call(StandIn("probe"), ([1],))
    if error is WorkerError:
        assert caught.value.kind == "hang"


def test_ranks(shut):
    shut.sandbox.answer = plain.pack(["returned", ([5, 6], None)])
    runs = shut.launch(len, 2, StandIn("probe"), {"rows": 4}, 10.0)
    assert list(runs) == [5, 6]
    shut.launch(len, 2, StandIn("probe"), {"rows": 4}, 100.0)
    _, (kind, given), (_, later) = shut.sandbox.orders
    assert (kind, given[:2], given[3:]) == ("ranks", (len, 2), ({"rows": 4}, 30.0))
    assert later[-1] == 144.0 < 180.0 == shut.sandbox.seconds[-1]  # the hang is told first
    assert (runs.device, runs.backend) == ("cpu", "gloo")


@pytest.mark.parametrize("results", [None, [1], [1, 2, 3], (1, 2), {"0": 1, "1": 2}])
def test_one_result_for_each_rank(shut, results):
    shut.sandbox.answer = plain.pack(["returned", (results, None)])
    with pytest.raises(Failed, match="not one for each rank"):
        shut.launch(len, 2, StandIn("probe"), {}, 10.0)


def test_the_checks_travel_by_value_and_only_then():
    """The sandbox has no file of theirs."""
    assert schedules.__name__ in by_value(cloudpickle.list_registry_pickle_by_value)
    with pytest.raises(ZeroDivisionError):
        by_value(lambda: 1 / 0)
    left = cloudpickle.list_registry_pickle_by_value()
    assert not {name for name in left if name.startswith("helpers.check")}


@pytest.mark.parametrize(
    ("given", "after", "found"),
    [
        (torch.zeros(2), torch.ones(2), [1.0, 1.0]),
        (torch.zeros(2), torch.ones(1), [0.0, 0.0]),
        (torch.zeros(2), torch.ones(2).double(), [0.0, 0.0]),
        (np.zeros(2), np.ones(2), [1.0, 1.0]),
        (np.zeros(2), np.ones(1), [0.0, 0.0]),
        (np.zeros(2), np.ones(2, np.int8), [0.0, 0.0]),
        (torch.zeros(2), None, [0.0, 0.0]),
        (torch.zeros(2), np.ones(2), [0.0, 0.0]),
        (torch.zeros(3, 2).T, torch.arange(6.0).view(2, 3), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
        (torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True), [1.0, 1.0]),
        (np.zeros(2), torch.ones(2), [0.0, 0.0]),
    ],
)
def test_numbers_are_written_into_their_own_place(given, after, found):
    restore(given, after)
    assert given.tolist() == found


def test_lists_tuples_and_dicts():
    inner, row = torch.zeros(1), np.zeros(1)
    given = ([inner, 1, 2], {"row": row, "kept": torch.zeros(1)}, [5], "text")
    restore(given, ([torch.ones(1), 1], {"row": np.ones(1), "new": 3}, [5, 6], None))
    assert inner.tolist() == [1.0]
    assert row.tolist() == [1.0]
    assert len(given[0]) == 2
    assert given[1].keys() == {"row", "kept"}
    assert given[2:] == ([5, 6], "text")
    longer, second = ([1], 2), [torch.zeros(1), torch.zeros(1)]
    restore(longer, ([3, 4, 5], 6, 7))
    restore(second, [torch.ones(1), 2 * torch.ones(1)])
    assert longer == ([3, 4, 5], 2)
    assert [one.tolist() for one in second] == [[1.0], [2.0]]
    for given, after in (([1, 2], (3, 4, 5)), ({"a": [1]}, [[2, 3]]), (([1],), [[2, 3]])):
        before = copy.deepcopy(given)
        restore(given, after)
        assert given == before
