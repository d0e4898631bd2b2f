"""A row and a page for each student: weights count, and of several notebooks the best."""

import csv

import pytest

from helpers.check.grading.scores import read_weights, scores, write_scores
from helpers.check.grading.table import Grade


def grade(submission, exercise, passed, finding=""):
    return Grade(submission=submission, exercise=exercise, passed=passed, finding=finding)


ROWS = [
    grade("bo/week1.ipynb", "mean", "no", "it is <3>\nHint: count \udc80"),
    grade("bo/week1.ipynb", "by_mpi", "not graded", "by hand"),
    grade("bo/new/week1.ipynb", "mean", "yes"),
    grade("bo/new/week1.ipynb", "ring", "no"),
    grade("anna.ipynb", "ring", "yes"),
    grade("anna.ipynb", "?", "no", "no exercise"),
]


@pytest.mark.parametrize(
    ("weights", "points"),
    [
        ({}, {"anna": (1, 3, 33.3), "bo": (1, 2, 50.0)}),
        ({"mean": 3.0, "by_mpi": 0.0}, {"anna": (1, 4, 25.0), "bo": (3, 4, 75.0)}),
        ({"mean": 0.0, "ring": 0.0, "by_mpi": 0.0}, {"anna": (0, 0, 0.0), "bo": (0, 0, 0.0)}),
    ],
)
def test_points_are_weights_of_what_everybody_was_asked_for(weights, points):
    found = scores(ROWS, weights)
    assert {one.student: (one.points, one.of, one.percent) for one in found} == points
    anna, bo = found

    def asked(*names):
        return [name for name in names if weights.get(name, 1)]

    assert (bo.passed, bo.missing, bo.by_hand) == (asked("mean"), asked("ring"), asked("by_mpi"))
    assert (anna.passed, anna.missing, anna.by_hand) == (asked("ring"), asked("by_mpi", "mean"), [])


def test_what_is_written(tmp_path):
    write_scores(tmp_path, scores(ROWS, {}))
    with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as file:
        anna, bo = csv.DictReader(file)
    assert anna == {
        "student": "anna", "percent": "33.3", "points": "1", "of": "3",
        "not passed": "by_mpi mean", "by hand": "",
    }  # fmt: skip
    assert bo["by hand"] == "by_mpi"
    pages = {page.stem: page.read_text("utf-8") for page in (tmp_path / "feedback").iterdir()}
    assert set(pages) == {"anna", "bo"}
    assert "it is &lt;3&gt;" in pages["bo"]
    assert "Not handed in: by_mpi, mean" in pages["anna"]
    assert "Not handed in" not in pages["bo"]
    assert "anna" not in pages["bo"]
    write_scores(tmp_path, [])  # again, into the same folder


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("zero_1", "could not convert"),
        ("zero_1,three", "could not convert"),
        ("zero1,3", "no exercise 'zero1'"),
        ("zero_1,-1", "0 or more"),
        ("zero_1,nan", "0 or more"),
    ],
)
def test_weights(tmp_path, text, told):
    file = tmp_path / "weights.csv"
    file.write_text("\ufeffzero_1, 3\r\n\r\ncombine,0.5\n", encoding="utf-8")
    assert read_weights(file) == {"zero_1": 3.0, "combine": 0.5}
    file.write_text(text)
    with pytest.raises(ValueError, match=told):
        read_weights(file)
