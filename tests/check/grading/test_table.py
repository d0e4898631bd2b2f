"""The table of grades: harmless in a spreadsheet, and summed up."""

import csv

import pytest

from helpers.check.grading.table import Grade, one_line, summary, write


def grade(submission, passed):
    return Grade(submission=submission, exercise="mean", passed=passed, finding='a, "b"')


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n  b", "a b"),
        ("\t\r\n=1", "'=1"),
        *((f"{sign}1", f"'{sign}1") for sign in "=+-@＝＋－＠"),
        ("\x1b[31mred\u202e", "[31mred"),
        ("\udc80", "?"),
        ("", ""),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_a_finding_is_one_harmless_line(text, line):
    assert one_line(text) == line


def test_rows_are_written_as_they_come(tmp_path):
    table = tmp_path / "grades.csv"
    rows = write(table, iter([grade("a", "yes"), grade("b", "no")]))
    next(rows)
    assert len(table.read_text().splitlines()) == 2
    list(rows)
    with table.open(newline="", encoding="utf-8") as file:
        assert [row["finding"] for row in csv.DictReader(file)] == ['a, "b"'] * 2


def test_the_sum():
    rows = [grade("a", "yes"), grade("a", "not graded"), grade("a", "no"), grade("bo", "no")]
    assert summary(rows, ["x.py"], 61.4).split("\n") == [
        "",
        "a   1 of 2   (1 not graded)",
        "bo  0 of 1",
        "no notebooks, so not graded: x.py",
        "1 of 4 passed, in 61 s",
    ]
    assert summary([], [], 0) == "\n0 of 0 passed, in 0 s"
    assert "f9 …" in summary([], [f"f{k}" for k in range(12)], 0)
