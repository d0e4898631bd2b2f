"""Plain data comes back as it was, and nothing is unpickled; JSON, and files written whole."""

import collections
import json
import math
import pickle
import struct
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from helpers.runtime import plain
from helpers.runtime.launch import launch
from helpers.runtime.payload import CannotTravel
from helpers.runtime.plain import LENGTH, as_json, decode, encode, everyones, read_json, write_json


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ((1, [2.5, None]), [1, [2.5, None]]),
        ({"a": {"b": True}}, {"a": {"b": True}}),
        (torch.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.float32(0.5), 0.5),
        (np.zeros((0, 2)), []),
    ],
)
def test_json_s_own_types(value, form):
    found = as_json(value, "x")
    assert found == form
    assert type(found) is type(form)


def test_the_largest_that_is_kept(monkeypatch):
    monkeypatch.setattr(plain, "LARGEST", 4)
    for largest in (np.zeros(4), torch.zeros(2, 2)):
        assert as_json(largest, "x")
    for larger in (np.zeros((1, 5)), torch.zeros(1, 5)):
        with pytest.raises(TypeError, match=r"x\['a'\]\[1\] has 5 elements, .* at most 4"):
            as_json({"a": [0, larger]}, "x")
    last = (1 << plain.LARGEST_INTEGER) - 1
    assert as_json(-last, "x") == -last
    with pytest.raises(TypeError, match="whole number of 10,001 bits"):
        as_json(last + 1, "x")


def test_a_file_is_for_its_user_alone_and_whole_or_not_there(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": [1]})
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        write_json(path, {"a": [1, object()]})  # the file is half written by then
    assert read_json(path) == {"a": [1]}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"[1]", b"3", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json holds no results"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [0, {1, 2}]}, "x['a'][1] is of type set, and"),
        ([0, {"b": 1j}], "x[1]['b'] is of type complex, and"),
        (torch.nn.Identity(), "x is of type torch.nn.modules.linear.Identity, and"),
        ({"a": {3: 0.5}}, "a key of x['a'] is 3, and in JSON keys are words"),
        ((0, torch.ones(1, dtype=torch.complex64)), "x[1][0] is of type complex, and"),
        ([torch.zeros(1_000_001)], "x[0] has 1,000,001 elements, and a result keeps at most 1,00"),
        ([1 << 20_000], "x[0] is a whole number of 20,001 bits, more than the 10,000 that"),
    ],
)
def test_a_part_without_a_form_is_named(value, said):
    with pytest.raises(TypeError) as caught:
        as_json(value, "x")
    assert str(caught.value).startswith(said)


def test_what_is_written_comes_back(tmp_path):
    value = {"Größe": ["…", 1 << 10_000 - 1, -0.5, None, {}]}
    for _ in range(2):  # the second replaces the first
        write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    write_json(tmp_path / "b.json", [])
    with pytest.raises(ValueError, match="but a JSON list"):
        read_json(tmp_path / "b.json")
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


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
    result, after = decode(encode({"result": value, "after": [b"x"]}))
    assert after == [b"x"]
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


@dataclass
class Point:
    x: int
    y: tuple = ()


def test_types_of_the_caller_travel_by_their_fields():
    value = [Point(1, (2, Point(3))), {"a": Point(torch.Size([4]))}]
    sent = encode({"result": value}, {Point: vars})
    [found] = decode(sent, {Point: vars})
    assert found == value
    assert type(found[0].y[1]) is Point
    with pytest.raises(ValueError, match="no result"):
        decode(sent)
    with pytest.raises(CannotTravel, match=r"`p\[0\]` is of type .*Point and"):
        encode({"p": [Point(5)]})


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
        torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8),
        collections.namedtuple("Point", "x y")(1, 2),
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_what_is_no_plain_data_is_named(bad):
    with pytest.raises(
        CannotTravel, match=r"`result\['m'\]\[1\]` is of type .*Under a launcher, re"
    ):
        encode({"result": {"m": [0, bad]}})


def test_keys_and_rows_that_are_no_plain_data_are_named():
    with pytest.raises(CannotTravel, match=r"^`a key of result\['m'\]` is of type .*Own and"):
        encode({"result": {"m": {Own(): 1}}})
    with pytest.raises(CannotTravel, match=r"^`the log\[1\]\['loss'\]` is of type .*Own and"):
        encode({"result": 1, "the log": [{"loss": 0.5}, {"loss": Own()}]})
    rows = [{"rank": 1, "loss": 0.5}, {"rank": 1, "note": "x"}]
    assert decode(encode({"a": torch.Size([2]), "b": rows})) == [torch.Size([2]), rows]


def test_what_contains_itself_is_refused():
    with pytest.raises(CannotTravel, match="contains itself"):
        encode({"result": LOOP})


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
        packed([{"tensor": ["quint8", [1], False, 1]}, []], b"1"),
        packed([{"complex": [10**400, 1]}, []]),
        packed([{"array": [",b4", [1], 8]}, []], b"12345678"),
        packed([{"array": ["O", [1], 8]}, []], b"12345678"),
        packed([{"eval": "print"}, []]),
        packed([{"own": ["Popen", []]}]),
        packed([{"own": ["Point", [["z", 3]]]}]),
        packed([{"own": ["Point", 3]}]),
        packed([{"own": [[], []]}]),
        packed([{"dict": [[[], 1]]}, []]),
        packed({"dict": []}),
    ],
)
def test_what_is_forged_is_refused_and_runs_nothing(forged):
    with pytest.raises(ValueError, match="a rank has sent bytes that are no result"):
        decode(forged, {Point: vars})


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
