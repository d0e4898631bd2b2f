"""A prediction and its answer: folded until the student has predicted, in every form of output."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from helpers.check import prediction as prediction_of_check
from helpers.check import sheet
from helpers.check.prediction import reveal, side_by_side
from helpers.plots.picture import Picture


class Visible(HTMLParser):
    """The text that a browser shows while every `<details>` is closed."""

    def __init__(self, html):
        super().__init__()
        self.inside, self.summary, self.text, self.images = 0, 0, "", 0
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        assert (tag, "open") not in [(tag, name) for name, _ in attrs]
        self.inside += tag == "details"
        self.summary += tag == "summary"
        self.images += tag == "img" and not self.inside

    def handle_endtag(self, tag):
        self.inside -= tag == "details"
        self.summary -= tag == "summary"

    def handle_data(self, data):
        if not self.inside or self.summary:
            self.text += data


def visible(shown):
    return Visible(shown._repr_html_()).text


def figure():
    made = Picture(figsize=(1, 1))
    made.subplots().plot([1, 2])
    return made


def test_without_a_prediction_the_answer_is_folded():
    row = side_by_side("sent", prediction=None, formula=4321, measured=4322, unit="B")
    assert repr(row) == "sent (B): predict first, then open: _.open()"
    assert visible(row) == "sent (B): predict first, then open"
    assert "4,321" in row._repr_html_()
    assert "4,322" in row._repr_html_()
    assert "your prediction" not in row._repr_html_()


def test_open_shows_the_answer():
    row = side_by_side("sent", prediction=None, formula=4321, measured=4322, unit="B").open()
    assert repr(row) == "sent (B): formula 4,321, measured here 4,322. Not predicted yet."
    assert "4,321" in visible(row)
    assert "details" not in row._repr_html_()
    assert "predicted" not in row._repr_html_()


def test_with_a_prediction_everything_shows():
    found = {"published": 2, "measured": torch.tensor(30), "formula": 20, "simulated": 3.5}
    row = side_by_side("sent", prediction=np.float64(10), **found, unit="B")
    assert repr(row) == (
        "sent (B): your prediction 10, formula 20, simulated 3.5, published 2, measured here 30. "
        "The measured value is 3 times your prediction. Which assumption makes the difference?"
    )
    html = row._repr_html_()
    assert "details" not in html
    assert re.findall("<th>(.*?)</th>", html) == [
        "", "your prediction", "formula", "simulated", "published", "measured here", "",
    ]  # fmt: skip
    assert re.findall("<b>(.*?)</b>", html) == ["10", "20", "3.5", "2", "30"]
    assert "3 times your prediction" in html


def test_zero_is_a_prediction():
    assert "details" not in side_by_side("x", prediction=0, measured=0)._repr_html_()


def test_what_is_no_number_leaves_the_answer_folded():
    row = side_by_side("sent", prediction="24 MB", measured=4322, unit="bytes")
    said = "'24 MB' is not a number. Write a number of bytes without quotes"
    assert said in repr(row)
    assert said in visible(row)
    assert "4,322" not in repr(row) + visible(row)
    assert "4,322" in row._repr_html_()


def test_several_questions_open_one_by_one():
    names, measured = ["small", "large"], [4321, 8765]
    row = side_by_side(names, prediction=[None, None], measured=measured, also="both: 999")
    assert visible(row) == "small: predict first, then openlarge: predict first, then open"
    assert not re.search(r"\d", repr(row))
    row = side_by_side(names, prediction=[None, 8765], measured=measured, also="both: 999")
    assert "8,765" in visible(row)
    assert "8,765" in repr(row)
    for text in (visible(row), repr(row)):
        assert "4,321" not in text
        assert "999" not in text  # it may show both
    row = side_by_side(names, prediction=[4000, 8765], measured=measured, also="both: 999")
    assert "4,321" in visible(row)
    assert "999" in visible(row)
    assert repr(row).endswith("\nboth: 999")
    assert row.open() == replace(row, opened=True)
    closed = side_by_side(names, prediction=[None, 1], measured=measured, also=("a", figure()))
    assert "img" in closed.open()._repr_html_()
    assert repr(closed.open()).startswith("small: measured here 4,321. Not predicted yet.\nlarge:")


def test_questions_may_have_different_sources():
    row = side_by_side(["a", "b"], prediction=[1, 1], formula=[None, 7], measured=[5, None])
    assert re.findall("<b>(.*?)</b>", row._repr_html_()) == ["1", "", "5", "1", "7", ""]


def test_a_figure_and_a_table_are_folded_too():
    frame = pd.DataFrame({"value": [4322]})
    row = side_by_side("x", prediction=None, measured=1, also=[figure(), frame])
    assert "4322" not in visible(row) + repr(row)
    assert Visible(row._repr_html_()).images == 0
    assert "data:image/png;base64," in row._repr_html_()
    row = side_by_side("x", prediction=1, measured=1, also=[figure(), frame])
    assert "4322" in visible(row)
    assert "4322" in repr(row)
    assert Visible(row._repr_html_()).images == 1


def test_reveal():
    frame = pd.DataFrame({"value": [4322]})
    shown = reveal(figure(), frame, "text 4323", prediction=None, what="the curves")
    assert repr(shown) == "the curves: predict first, then open: _.open()"
    assert visible(shown) == "the curves: predict first, then open"
    for opened in (shown.open(), reveal(figure(), frame, "text 4323", prediction=0)):
        assert "4322" in visible(opened)
        assert "text 4323" in visible(opened)
        assert re.search(r"\n0 +4322\ntext 4323$", repr(opened))
        assert Visible(opened._repr_html_()).images == 1


def test_reveal_waits_for_every_prediction():
    assert reveal("4322", prediction=[1, 2]).opened
    assert not reveal("4322", prediction=[1, None]).opened
    assert not reveal("4322", prediction=(None, 1)).opened
    assert repr(reveal("4322", prediction=None)) == "the answer: predict first, then open: _.open()"


@pytest.mark.parametrize(
    "wrong", ["prediction_a = 10 16", "# x\nprediction_a = 1 / 0", "prediction_a=y"]
)
def test_after_an_error_in_its_cell_no_older_prediction_is_judged(monkeypatch, wrong):
    shell = InteractiveShell()
    monkeypatch.setattr(prediction_of_check, "shell", lambda: shell)
    shell.events.register("post_run_cell", prediction_of_check.forget)
    for cell in ("prediction_a, prediction_b = 3, 3", wrong, "if prediction_b == 0: 1 / 0"):
        shell.run_cell(cell)
    a, b = shell.user_ns["prediction_a"], shell.user_ns["prediction_b"]
    drawn = side_by_side(["x", "y"], prediction=[a, b], measured=[5, 3])
    assert "x: predict first, then open" in repr(drawn)
    assert "y: your prediction 3" in repr(drawn)
    assert "5" not in repr(reveal("5", prediction=a))
    shell.run_cell("prediction_a = 4")
    assert shell.user_ns["prediction_a"] == 4


@pytest.mark.parametrize("prediction", [None, 1])
def test_jupyter_does_not_draw_the_figure_a_second_time(prediction):
    for fold in (
        lambda made: side_by_side("x", prediction=prediction, measured=1, also=made),
        lambda made: reveal(made, prediction=prediction),
    ):
        made, other = plt.figure(), plt.figure()
        try:
            fold(made)
            assert plt.get_fignums() == [other.number]
        finally:
            plt.close(other)


def test_mistakes_of_the_author():
    with pytest.raises(TypeError, match="nothing to compare with"):
        side_by_side("x", prediction=24)
    with pytest.raises(TypeError, match=r"2 questions need .*\{'prediction': 1, 'measured': 2\}"):
        side_by_side(["a", "b"], prediction=[1], measured=[1, 2])
    with pytest.raises(TypeError, match="2 questions need as many values"):
        side_by_side(["a", "b"], prediction=[1, 2], measured=[1, 2, 3])


@pytest.mark.parametrize("prediction", [None, 1])
def test_names_are_escaped(prediction):
    html = side_by_side("a < b", prediction=prediction, measured=2, unit="<i>")._repr_html_()
    assert "a &lt; b" in html
    assert "<i>" not in html
    html = reveal("<i>", prediction=prediction, what="<i>")._repr_html_()
    assert "<i>" not in html
    for words in ("a", 3):  # the prediction is compared, or complained about
        assert "<i>" not in side_by_side("x", prediction="<i>", measured=words)._repr_html_()


def test_every_question_goes_onto_the_sheet(monkeypatch):
    asked = {}
    monkeypatch.setattr(sheet, "_asked", asked)
    made = side_by_side(["a", "b"], prediction=[None, 0], measured=[0, 5], unit="s")
    assert tuple(asked.values()) == made.questions
    assert [(one.what, one.numbers, one.unit) for one in made.questions] == [
        ("a", {"measured": 0}, "s"), ("b", {"measured": 5}, "s"),
    ]  # fmt: skip
