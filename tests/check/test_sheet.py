"""The sheet: every question in the order of asking, and no answer without a prediction."""

import re

import pytest

from helpers.check import sheet
from helpers.check.prediction import side_by_side
from helpers.check.sheet import prediction_sheet


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(sheet, "_asked", {})


def lines():
    return repr(prediction_sheet()).splitlines()[1:-1]


def test_nothing_asked():
    assert repr(prediction_sheet()) == "No question was asked yet. Run the notebook from the top."
    assert prediction_sheet()._repr_html_() == f"<p>{prediction_sheet()!r}</p>"


def test_without_predictions_no_answer():
    side_by_side("bytes", prediction=None, formula=431, measured=432)
    side_by_side("text", prediction="1 kB", measured=433)
    found = prediction_sheet()
    assert found.summary().startswith("0 of 2 predicted. Write your predictions")
    assert [line[2:] for line in found.rows()] == [["", "", ""]] * 2
    for text in (repr(found), found._repr_html_()):
        assert "43" not in text
        assert "not predicted yet" in text
        assert "not a number" in text


def test_rows_in_the_order_of_asking_and_a_re_run_replaces_its_row():
    side_by_side("first", prediction=None, measured=1)
    side_by_side(["second", "third"], prediction=[2, None], measured=[2, 3])
    side_by_side("first", prediction=1, measured=1.5)
    assert [line.split()[0] for line in lines()] == ["first", "second", "third"]
    assert "33 % below" in lines()[0]
    assert prediction_sheet().summary() == (
        "2 of 3 predicted, 1 of them close (within 10 %). "
        "The largest surprise is the best place to learn."
    )


def test_all_close():
    side_by_side("a", prediction=1, measured=1)
    assert prediction_sheet().summary() == "1 of 1 predicted, 1 of them close (within 10 %)."


def test_a_sheet_stays_as_it_was_drawn():
    side_by_side("a", prediction=1, measured=1)
    before = prediction_sheet()
    side_by_side("b", prediction=1, measured=1)
    assert len(before.questions) == 1


def test_columns_agree():
    side_by_side("bytes", prediction=100, formula=7, measured=400, unit="kB")
    side_by_side("word", prediction="hang", measured="hang")
    head, first, second, summary = repr(prediction_sheet()).splitlines()
    assert re.split("  +", head) == sheet.HEAD
    starts = [head.index(name) for name in sheet.HEAD]
    cells = [
        ["bytes (kB)", "100", "400", "      ██│", "The measured value is 4 times your prediction."],
        ["word", "hang", "hang", "        ●", "Exactly right."],
    ]
    for line, row in zip((first, second), cells, strict=True):
        ends = [*starts[1:], None]
        found = [line[a:b].rstrip() for a, b in zip(starts, ends, strict=True)]
        assert found == row
    assert summary == prediction_sheet().summary()
    assert summary.startswith("2 of 2 predicted, 1 of them close")


def test_html():
    side_by_side("a < b", prediction=100, measured=400, unit="s")
    html = prediction_sheet()._repr_html_()
    assert "a &lt; b (s)" in html
    assert "white-space:pre'>      ██│" in html
    assert "The measured value is 4 times your prediction." in html
    assert html.endswith(f"<p>{prediction_sheet().summary()}</p>")
    assert re.findall("<th>(.*?)</th>", html) == sheet.HEAD
    sides = re.findall("<td style='text-align:(.*?)'>", html)
    assert sides == ["left", "left", "left", "center", "left"]
    assert re.findall("<td style='text-align:left'>(.*?)</td>", html)[:3] == [
        "a &lt; b (s)", "100", "400",
    ]  # fmt: skip
    side_by_side("b", prediction=None, measured=400)
    assert prediction_sheet()._repr_html_().count("<code") == 1
