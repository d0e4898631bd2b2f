"""What travels between the ranks of a launcher: plain data, the same at the other end."""

import collections
import json
import math
import pickle
import struct

import numpy as np
import pytest
import torch

from helpers.runtime.joined.results import LENGTH, decode, encode, everyones
from helpers.runtime.launch import launch
from helpers.runtime.payload import CannotTravel

PLAIN = {
    "words": ["a", "\ud800", "", None, True, False],
    "numbers": (0, -3, 10**300, 1 << 14_500, -1 << 20_000, 2.5, math.inf, 1e-320, 1j),
    ("a", 1): {3, 4},
    7: frozenset(["x"]),
    "bytes": b"\x00\xff",
    "torch": [torch.float16, torch.device("cuda:1"), torch.Size([1, 2])],
    "empty": [[], (), {}, b""],
}
TENSORS = [
    torch.arange(6.0).view(2, 3).t(),
    torch.tensor(3, dtype=torch.int64),
    torch.empty(0, 3),
    torch.ones(3, dtype=torch.bfloat16),
    torch.ones(2).to(torch.float8_e4m3fn),
    torch.tensor([True, False]),
    torch.ones(2, dtype=torch.complex64).conj(),
    torch._neg_view(torch.arange(3.0)),
    torch.nn.Parameter(torch.ones(2)),
]
ARRAYS = [np.arange(6).reshape(2, 3).T, np.zeros((0, 2)), np.array(["ab", "c"]), np.float32(2.5)]
ARRAYS += [np.array([b"ab"]), np.array(["2024-02-29"], "M8[D]"), np.timedelta64(3, "s")]


def there_and_back(value):
    result, records = decode(encode((value, [])))
    assert records == []
    return result


def test_plain_data_comes_back():
    result = there_and_back(PLAIN)
    assert result == PLAIN
    assert [type(part) for part in result.values()] == [type(part) for part in PLAIN.values()]
    assert math.isnan(there_and_back(math.nan))


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype} {tuple(t.shape)}")
def test_tensors_come_back(tensor):
    (result,) = there_and_back([tensor])
    assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)
    assert result.requires_grad == tensor.requires_grad
    raw = [
        t.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
        for t in (result, tensor)
    ]
    assert torch.equal(*raw)
    if result.numel():
        result.detach().view(-1)[0] = 0  # it can be written


def test_a_result_of_autograd_arrives_without_its_graph():
    loss = torch.nn.Parameter(torch.ones(2)) * 3
    (result,) = there_and_back([loss])
    assert not result.requires_grad
    assert result.tolist() == [3, 3]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_arrays_and_their_numbers_come_back(array):
    result = there_and_back({"a": array, "after": b"xyz"})
    assert (type(result["a"]), result["a"].dtype) == (type(array), array.dtype)
    np.testing.assert_array_equal(result["a"], array)
    assert result["after"] == b"xyz"
    assert type(array) is not np.ndarray or result["a"].flags.writeable


def test_a_state_dict_comes_back_as_a_dict():
    state = torch.nn.Linear(2, 3).state_dict()
    result = there_and_back(state)
    assert list(result) == list(state)
    assert all(torch.equal(result[name], state[name]) for name in state)


class Own:
    pass


LOOP: list = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "bad",
    [
        torch.nn.Linear(1, 1),
        Own(),
        print,
        np.array([None]),
        torch.ones(2).to_sparse(),
        collections.namedtuple("Point", "x y")(1, 2),
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_what_is_no_plain_data_is_named(bad):
    with pytest.raises(
        CannotTravel, match=r"`result\['m'\]\[1\]` is of type .*Under a launcher, re"
    ):
        encode(({"m": [0, bad]}, []))


def test_keys_and_rows_that_are_no_plain_data_are_named():
    with pytest.raises(CannotTravel, match=r"^`a key of result\['m'\]` is of type .*Own and"):
        encode(({"m": {Own(): 1}}, []))
    with pytest.raises(CannotTravel, match=r"^`the log\[1\]\['loss'\]` is of type .*Own and"):
        encode((1, [{"loss": 0.5}, {"loss": Own()}]))
    rows = [{"rank": 1, "loss": 0.5}, {"rank": 1, "note": "x"}]
    assert decode(encode((torch.Size([2]), rows))) == [torch.Size([2]), rows]


def test_what_contains_itself_is_refused():
    with pytest.raises(CannotTravel, match="contains itself"):
        encode((LOOP, []))


def packed(node, rest=b""):
    text = json.dumps(node).encode()
    return LENGTH.pack(len(text)) + text + rest


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        pickle.dumps([1, []]),
        struct.pack("<Q", 1 << 60),
        packed([1, []], b"more"),
        packed([{"bytes": 4}, []], b"abc"),
        packed([{"bytes": -1}, []], b"abc"),
        packed([{"tensor": ["load", [1], False, 0]}, []]),
        packed([{"tensor": ["float32", [3], False, 4]}, []], b"1234"),
        packed([{"array": ["O", [1], 8]}, []], b"12345678"),
        packed([{"eval": "print"}, []]),
        packed([{"dict": [[[], 1]]}, []]),
        packed({"dict": []}),
    ],
)
def test_what_is_forged_is_refused_and_runs_nothing(forged):
    with pytest.raises(ValueError, match="a rank has sent bytes that are no result"):
        decode(forged)


def test_bytes_that_are_missing_are_counted():
    for node, size in (({"bytes": 4}, 4), ({"tensor": ["float32", [1], False, 4]}, 4)):
        with pytest.raises(ValueError, match=rf"no result \({size} bytes are missing\)"):
            decode(packed([node, []], b"abc"))


def test_every_rank_gets_what_each_has_sent():
    def talk(worker):
        mine = bytes([worker.rank]) * (1 + 100 * worker.rank)
        return everyones(mine, None)

    for got in launch(talk, 3):
        assert got == [b"\0", b"\1" * 101, b"\2" * 201]
