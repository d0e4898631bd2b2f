"""What has a form in JSON, up to which size; and files that are written whole or not at all."""

import numpy as np
import pytest
import torch

from helpers.runtime import plain
from helpers.runtime.plain import as_json, read_json, write_json


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
