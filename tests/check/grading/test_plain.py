"""Answers come back as they were, and nothing but plain data and the course's types is made."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from helpers.check.grading import plain
from helpers.check.grading.plain import LENGTH, numbers_of, pack, unpack
from helpers.check.traffic import Call
from helpers.check.watch import Event
from helpers.comm.mesh import Layout
from helpers.plans.schedules import Action, Message, gpipe
from helpers.runtime.payload import CannotTravel
from helpers.runtime.plain import encode

ACTION = Action("F", 1, 2)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2.5, "three", True, (4,)],
        {"a": [ACTION, Message("send", 0, 1, 2, 3)], 3: (ACTION,)},
        [Call("send", None, 8), Event("wait", "x", 3), Layout(dp=2, tp=4), gpipe(2, 3)],
    ],
)
def test_back_as_it_was(value):
    found = unpack(pack(value))
    assert found == value
    assert type(found) is type(value)


def test_tensors_and_arrays():
    found = unpack(pack([torch.arange(6).view(2, 3), np.float32(2.5), np.ones(2)]))
    assert torch.equal(found[0], torch.arange(6).view(2, 3))
    assert found[1] == np.float32(2.5)
    np.testing.assert_array_equal(found[2], np.ones(2))


def test_an_answer_of_much_text_is_not_parsed(monkeypatch):
    """Tensors may be large: they are no JSON."""
    assert plain.LARGEST == 4 << 20
    monkeypatch.setattr(plain, "LARGEST", 1000)
    assert len(unpack(pack(torch.ones(5000)))) == 5000
    assert len(unpack(pack("x" * 900))) == 900
    for much in ("x" * 1001, [[]] * 600, [torch.ones(5000), "x" * 1001]):
        with pytest.raises(ValueError, match=r"^it has more than 1,000 bytes besides tensors$"):
            unpack(pack(much))
    with pytest.raises(ValueError, match="no result"):  # it says that it is longer than it is
        unpack(LENGTH.pack(9000) + bytes(2000))


def test_an_answer_in_an_answer_keeps_its_types():
    value = ({"a": [(ACTION, {3: (ACTION,)})]}, [{"b": ()}])
    found = unpack(pack(value))
    assert found == value
    assert type(found[0]["a"][0]) is tuple
    assert type(found[0]["a"][0][1][3][0]) is Action
    assert type(unpack(pack(Layout(dp=2, tp=4)))) is Layout
    assert unpack(pack(Layout(tp=4, dp=2))).axes == Layout(tp=4, dp=2).axes != ("dp", "tp")


@dataclass
class Own:
    """A type of the submission's own."""

    x: int = 1


@pytest.mark.parametrize("value", [object(), open, Exception("x"), [{1: print}], Own(), [Own()]])
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(CannotTravel):
        pack(value)


def test_a_forged_type_is_refused():
    for value, fields in ((Own(), {}), (ACTION, {"no": 1}), (ACTION, {"kind": "F"})):
        with pytest.raises(ValueError, match="no result"):
            unpack(encode({"x": value}, {type(value): lambda _, fields=fields: fields}))


def test_a_pickle_is_no_answer():
    class Spy:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    deep = LENGTH.pack(200_000) + b"[" * 100_000 + b"]" * 100_000
    for data in (pickle.dumps(Spy()), b"", b"\x00" * 8, pack(1)[:-1], deep):
        with pytest.raises(ValueError, match=r"no result|no answer"):
            unpack(data)


def test_numbers_alone_are_what_a_function_may_have_written_into():
    tensor, array = torch.ones(2), np.ones(2)
    found = numbers_of(([tensor, object()], {"a": array, (1,): 2}, print, "word"))
    assert found[0][0] is tensor
    assert found[0][1] is None
    assert list(found[1]) == ["a"]
    assert found[2:] == (None, "word")
    kept = [3, (2.5, True), {7: -1, "b": [None]}]
    assert numbers_of(kept) == kept
    assert type(numbers_of(kept)[1]) is tuple
    assert numbers_of([1j, {1}, b"x"]) == [None, None, None]
