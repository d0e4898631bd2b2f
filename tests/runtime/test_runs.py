"""What a call gives back: access, the way to a file and back, and the rows that are kept."""

import json
import math
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.runtime import runs as module
from helpers.runtime.runs import Rows, Runs, load_runs, rank_file, save_rank, short

numbers = st.integers() | st.floats() | st.booleans() | st.none()
values = st.recursive(
    numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
rows = st.fixed_dictionaries(
    {"rank": st.integers(0, 3), "loss": numbers, "seconds": st.floats(0, 1e6)}
)
some_runs = st.builds(
    Runs,
    st.lists(values, max_size=4),
    st.lists(rows, max_size=4),
    st.sampled_from(["cpu", "cuda"]),
    st.text(max_size=8),
    st.floats(0, 1e6),
)


def same(a, b) -> bool:
    """Equal in value and kind; and NaN is NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        equal = a == b and math.copysign(1, a) == math.copysign(1, b)
        return equal or (a != a and b != b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


def parts(runs):
    return [runs.results, runs.records, runs.device, runs.backend, runs.seconds]


@given(some_runs)
@settings(deadline=None, max_examples=40)
def test_saved_and_loaded_is_the_same(tmp_path_factory, runs):
    path = tmp_path_factory.getbasetemp() / "runs.json"
    runs.save(path)
    assert same(parts(load_runs(path)), parts(runs))


@given(some_runs)
@settings(deadline=None, max_examples=40)
def test_ranks_leave_the_same_in_a_folder(tmp_path_factory, runs):
    if not runs.results:
        return
    folder = tmp_path_factory.getbasetemp()
    records = [r for r in runs.records if r["rank"] < len(runs)]
    runs = Runs(runs.results, records, runs.device, runs.backend, runs.seconds)
    for rank in range(len(runs)):
        save_rank(folder, runs, rank, "attempt")
    loaded = load_runs(folder)
    assert same(loaded.results, runs.results)
    assert same(parts(loaded)[2:], parts(runs)[2:])
    key = lambda record: (record["rank"], record["seconds"])  # noqa: E731
    assert same(sorted(loaded.records, key=key), sorted(records, key=key))


def test_what_is_no_json_is_named_and_nothing_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"runs\[0\]\['model'\] is of type torch\.nn.*Linear"):
        Runs([{"model": torch.nn.Linear(1, 1)}]).save(tmp_path / "runs.json")
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_is_never_read(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "it ran"),)

    for path in (tmp_path / "runs.json", tmp_path / "rank-00000.json"):
        path.write_bytes(pickle.dumps(Bomb()))
    for path in (tmp_path / "runs.json", tmp_path):
        with pytest.raises(ValueError, match="holds no results"):
            load_runs(path)
    assert not (tmp_path / "it ran").exists()


def test_a_folder_with_ranks_missing_or_mixed_is_refused(tmp_path):
    runs = Runs([1, 2, 3])
    with pytest.raises(FileNotFoundError, match="rank 0 has left no result"):
        load_runs(tmp_path)
    save_rank(tmp_path, runs, 0, "second")
    save_rank(tmp_path, runs, 1, "second")
    with pytest.raises(FileNotFoundError, match="rank 2 of 3 has left no result"):
        load_runs(tmp_path)
    save_rank(tmp_path, runs, 2, "first")
    with pytest.raises(ValueError, match=r"ranks 0 and 2 .* different attempts"):
        load_runs(tmp_path)
    save_rank(tmp_path, runs, 2, "second")
    assert list(load_runs(tmp_path)) == [1, 2, 3]
    assert json.loads(Path(rank_file(tmp_path, 2)).read_text())["result"] == 3


def test_column_names_what_is_missing():
    runs = Runs([{"loss": 1.0}, {"lost": 2.0}])
    with pytest.raises(KeyError, match=r"rank 1 returned no 'loss'; it has \['lost'\]"):
        runs.column("loss")
    with pytest.raises(KeyError, match="rank 0 returned a int"):
        Runs([3]).column("loss")
    assert Runs([{"loss": 1.0}, {"loss": 2.0}]).column("loss") == [1.0, 2.0]


def test_frame_is_ordered_by_rank_then_as_logged():
    records = [
        {"rank": 1, "step": 0, "seconds": 0.1},
        {"rank": 0, "step": 0, "loss": 3.0, "seconds": 0.2},
        {"rank": 1, "step": 1, "seconds": 0.3},
    ]
    frame = Runs([None, None], records).frame()
    assert list(frame.columns) == ["rank", "step", "loss", "seconds"]
    assert frame[["rank", "step"]].values.tolist() == [[0, 0], [1, 0], [1, 1]]


def test_repr_shows_each_rank_on_one_line():
    text = repr(Runs([{"a": "x" * 200}, 2], [{"rank": 0, "seconds": 0.0}]))
    lines = text.splitlines()
    assert lines[0] == "2 ranks on cpu (gloo)"
    assert lines[1].endswith("...")
    assert len(lines[1]) < 120
    assert lines[2:] == ["rank 1: 2", "1 logged rows: .frame()"]
    assert repr(Runs(["a\n  b"], device="cuda", backend="nccl")) == (
        "1 rank on cuda (nccl)\nrank 0: 'a\\n b'"
    )
    assert short("x" * 98) == repr("x" * 98)
    assert short("x" * 99) == "'" + "x" * 96 + "..."


def test_a_rank_that_is_not_there():
    with pytest.raises(IndexError, match="no rank 2: there are ranks 0 to 1"):
        Runs([1, 2])[2]
    assert (Runs([1, 2])[-1], len(Runs([1, 2])), list(Runs([1, 2]))) == (2, 2, [1, 2])


def test_each_rank_leaves_its_own_rows_and_they_come_back_in_time(tmp_path):
    rows = [(0, 0.1), (1, 0.2), (0, 0.3), (1, 0.4)]
    records = [{"rank": rank, "seconds": seconds} for rank, seconds in rows]
    runs = Runs(["a", "b"], records, "cuda", "x", 2.5)
    for rank in (1, 0):
        save_rank(tmp_path, runs, rank, "once")
    saved = json.loads(Path(rank_file(tmp_path, 1)).read_text())
    assert saved["records"] == records[1::2]
    assert (saved["rank"], saved["world_size"], saved["attempt"]) == (1, 2, "once")
    assert parts(load_runs(tmp_path)) == parts(runs)


@pytest.mark.parametrize("name", ["results", "records", "device", "backend", "seconds", "runs"])
def test_a_file_in_which_something_is_missing_is_refused(tmp_path, name):
    Runs([1]).save(tmp_path / "runs.json")
    saved = json.loads((tmp_path / "runs.json").read_text())
    (tmp_path / "runs.json").write_text(json.dumps({**saved, name: {}}))
    with pytest.raises(ValueError, match=f"holds no results: its '{name}' is no "):
        load_runs(tmp_path / "runs.json")


def test_rows_of_one_rank_stay_in_the_order_of_their_arrival():
    """Their clocks may say something else: a call of before may have logged later."""
    steps = [(1, 0, 0.9), (0, 1, 0.5), (0, 0, 0.1), (1, 1, 0.2)]
    records = [{"rank": r, "step": s, "seconds": t} for r, s, t in steps]
    frame = Runs([None, None], records).frame()
    assert frame[["rank", "step"]].values.tolist() == [[0, 1], [0, 0], [1, 0], [1, 1]]
    assert list(Runs([None]).frame().columns) == ["rank", "seconds"]


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(module, "ROWS_KEPT", 3)
    monkeypatch.setattr(module, "CHARACTERS_KEPT", 10)


def add(*values):
    kept = Rows()
    return kept, [kept.add({"rank": 0, "value": value}) for value in values]


def test_a_row_too_many_is_counted(few, capsys):
    kept, added = add(1, 2, 3, 4, 5)
    assert added == [True] * 3 + [False] * 2
    assert [row["value"] for row in kept.kept] == [1, 2, 3]
    kept.finish()
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("worker.log: the last 2 rows are left out. A call keeps 3 rows")


def test_words_too_many_are_left_out(few):
    kept, added = add("four", "six006", "e", 1)
    assert added == [True, True, False, False]  # and no gap: nothing after the first
    assert kept.left_out == 2


def test_when_all_are_kept_nothing_is_said(few, capsys):
    kept, added = add(1, 2, 3)
    kept.finish()
    assert all(added)
    assert capsys.readouterr().out == ""
