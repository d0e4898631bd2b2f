"""The table of grades: harmless in a spreadsheet, and summed up."""

import csv
from dataclasses import replace

import pytest

from helpers.check.grading.table import Grade, one_line, summary, their_line_first, write


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
        ("x" * 301, "x" * 299 + "…"),
        ("x" * 300, "x" * 300),
        ("a = 1", "a = 1"),
        ("学生", "学生"),
    ],
)
def test_a_finding_is_one_harmless_line(text, line):
    assert one_line(text) == line


FRAMES = """rank 1 raised IndexError: out of range
Traceback (most recent call last):
  File "/course/helpers/runtime/local/rank/program.py", line 9, in main
    run(worker)
    ^^^^^^^^^^^
  File "<notebook 0>", line 7, in outer
    return ring(x)
  File "<notebook 1>", line 3, in ring
    x[rank] = y
    ~^^^^^^
  [Previous line repeated 2 more times]
IndexError: out of range
Hint: count"""
ONE_LINE = "line 3 of ring (x[rank] = y): rank 1 raised IndexError: out of range Hint: count"


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (
            FRAMES,
            "line 3 of ring (x[rank] = y): rank 1 raised IndexError: out of range\nHint: count",
        ),
        (
            FRAMES.replace("<notebook", "<other"),
            "rank 1 raised IndexError: out of range\nHint: count",
        ),
        ('it is 3\n  File "<notebook 1>", line 3, in f', "line 3 of f: it is 3"),
        ("it is 3", "it is 3"),
    ],
)
def test_the_student_s_own_line_is_first_and_no_other_frame_is_left(finding, line):
    assert their_line_first(finding) == line


def test_rows_are_written_as_they_come(tmp_path):
    table = tmp_path / "grades.csv"
    table.write_text("the rows of the last run\n" * 9)
    rows = write(table, iter([grade("a", "yes"), replace(grade("ü", "no"), finding=FRAMES)]))
    next(rows)
    assert len(table.read_text().splitlines()) == 2
    list(rows)
    first, second, _ = table.read_bytes().decode().split("\r\n")[:3]
    assert first == "submission,exercise,passed,finding,seconds"
    assert second == 'a,mean,yes,"a, ""b""",0.0'
    with table.open(newline="", encoding="utf-8") as file:
        assert [row["finding"] for row in csv.DictReader(file)] == ['a, "b"', ONE_LINE]


def test_a_row_is_a_line_in_the_terminal():
    row = Grade(submission="a.ipynb", exercise="mean", passed="no", finding=FRAMES)
    assert str(row) == f"a.ipynb  mean: no  {ONE_LINE}"
    assert str(Grade(submission="b", exercise="mean", passed="yes")) == "b  mean: yes"


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
    assert "f8, f9 …\n" in summary([], [f"f{k}" for k in range(11)], 0)
    assert "f8, f9\n" in summary([], [f"f{k}" for k in range(10)], 0)
