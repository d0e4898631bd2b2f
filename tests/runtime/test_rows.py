"""Rows of `worker.log`: the first of a call are kept, the others are counted."""

import pytest

from helpers.runtime import rows
from helpers.runtime.joined.member import Notes
from helpers.runtime.rows import Rows


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(rows, "ROWS_KEPT", 3)
    monkeypatch.setattr(rows, "CHARACTERS_KEPT", 10)


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


def test_a_rank_of_a_launcher_keeps_as_many(few):
    class Screen:
        points = 0

        def point(self, record):
            self.points += 1

        def draw(self):
            pass

    notes = Notes(0, Screen())
    for step in range(5):
        notes.post("log", 0.0, {"step": step})
    assert [row["step"] for row in notes.records] == [0, 1, 2]
    assert notes.rows.left_out == 2
    assert notes.screen.points == 3
