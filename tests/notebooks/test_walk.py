"""No notebook shows an answer before its prediction; the walker that tells finds each fault."""

import ast

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.check import sheet
from helpers.check.prediction import reveal, side_by_side
from helpers.check.sheet import prediction_sheet
from helpers.plots.picture import Picture
from tests.notebooks.rendered import render
from tests.notebooks.test_format import NOTEBOOKS
from tests.notebooks.walk import faults

QUESTION = "**How many bytes does each rank send?**"
ASK = "# Predict: bytes that one rank sends\nprediction_sent = None"
RUN = """sent = send()
assert sent > 0
side_by_side("sent", prediction=prediction_sent, formula=sent, measured=sent, unit="B")"""
BELOW = """assert sent == 36_896"""
REMEMBER = "<details><summary>After you have predicted</summary>\n\nIt is 36,896.\n\n</details>"
SHEET = "prediction_sheet()"


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(sheet, "_asked", {})


class Text(str):
    """The source of a text cell."""


def picture():
    made = Picture(figsize=(0.5, 0.5))
    made.subplots()
    return made


def run(*sources, tags=(), sent=36_896):
    """A notebook of these cells, with the outputs that they have."""
    names = {
        "side_by_side": side_by_side,
        "reveal": reveal,
        "prediction_sheet": prediction_sheet,
        "picture": picture,
        "send": lambda: sent,
        "table": lambda: pd.DataFrame({"bytes": [1]}),
        "loss": 41.7,
    }
    cells = []
    for source in sources:
        if isinstance(source, Text):
            cells.append(new_markdown_cell(source))
            continue
        cells.append(new_code_cell(source, execution_count=1))
        *body, last = ast.parse(source).body
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), "cell", "exec"), names)
            continue
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        cells[-1].outputs.append(as_output(shown))
    for cell in cells:
        cell.metadata.tags = list(tags) if cell.cell_type == "code" else []
    return new_notebook(cells=cells)


def as_output(shown):
    data = {"text/plain": repr(shown)}
    if isinstance(shown, Picture):
        data["image/png"] = PIXEL
    elif hasattr(shown, "_repr_html_"):
        data["text/html"] = shown._repr_html_()
    return new_output("execute_result", data=data, execution_count=1)


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def good(**changed):
    parts = {
        "question": Text(QUESTION),
        "ask": ASK,
        "run": RUN,
        "below": BELOW,
        "remember": Text(REMEMBER),
        "sheet": SHEET,
    }
    return [part for part in (parts | changed).values() if part is not None]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_notebook_shows_an_answer_before_its_prediction(path):
    found = faults(nbformat.read(path, as_version=4))
    assert found == [], "\n".join(["", *found])


def test_a_good_notebook_has_no_fault():
    assert faults(run(*good())) == []


def test_one_of_the_numbers_that_a_cell_tries_is_no_secret():
    tries = RUN.replace("sent = send()", "for sent in (5, 36_896):\n    pass")
    assert faults(run(*good(question=Text("Among 5 and 36,896?"), run=tries))) == []


def test_a_notebook_without_predictions_needs_no_sheet():
    assert faults(run(Text("# Title"), "x = 1")) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        # (a) a cell of its own
        ({"ask": None, "run": f"prediction_sent = None\n{RUN}"}, "belongs into a cell of its own"),
        ({"ask": f"{ASK}\nsize = 4"}, "no cell of its own above sets prediction_sent"),
        ({"ask": ASK.replace("None", "7")}, "no cell of its own above sets prediction_sent"),
        ({"below": "prediction_sent = 5"}, "cell 3: prediction_sent belongs into a cell"),
        ({"below": ASK}, "cell 3: prediction_sent is already the name of another prediction"),
        ({"below": "prediction_other = None"}, "cell 3: prediction_other is never compared"),
        (
            {"run": RUN.replace("prediction=prediction_sent", "prediction=None")},
            "cell 2: prediction= is neither a name",
        ),
        ({"below": RUN}, "2 questions have the name 'sent'"),
        # (b) folded outputs
        ({"below": RUN.replace("sent", "x", 1).replace('"B")', '"B").open()')}, "0 of them folded"),
        ({"below": "reveal('36,896', prediction=prediction_sent).open()"}, "0 of them folded"),
        # (c), (d) no number told
        ({"question": Text("It is 36,896.")}, "cell 0: tells 36,896, an answer of cell 2"),
        ({"question": Text("It is 36 896 / 36.9 kB.")}, "cell 0: tells 36,896"),
        ({"question": Text("$36{,}896$ bytes")}, "cell 0: tells 36,896"),
        ({"question": Text("$3.6896 \\cdot 10^{4}$ bytes")}, "cell 0: tells 36,896"),
        ({"question": Text("| bytes |\n|---|\n| 36896 |")}, "cell 0: tells 36,896"),
        ({"question": "known = 36_896"}, "cell 0: tells 36,896"),
        ({"question": "known = 4 * (1152 + 1) * 8"}, "cell 0: tells 36,896"),
        ({"question": "'it printed 36896'"}, "cell 0: tells 36,896"),
        ({"run": f"# 36896\n{RUN}"}, "cell 2: tells 36,896"),
        ({"remember": Text("It was 36,896.")}, "cell 4: tells 36,896 right below"),
        (
            {"remember": Text(REMEMBER.replace("<details>", "<details open>"))},
            "cell 4: tells 36,896 right below",
        ),
        ({"below": "'36,896'"}, "cell 3: tells 36,896"),
        (
            {"run": RUN.replace("formula=sent", "formula=4 * 9224")},
            "cell 2: formula= is a literal",
        ),
        (
            {"run": RUN.replace("measured=sent", "measured=36896")},
            "cell 2: measured= is a literal",
        ),
        # pictures
        ({"below": "picture()"}, "cell 3: a picture or table beside the closed answer of cell 2"),
        (
            {"question": "0", "ask": ASK, "run": "picture()", "below": RUN, "remember": None},
            "cell 2: a picture or table beside the closed answer of cell 3",
        ),
        ({"below": "table()"}, "cell 3: a picture or table beside the closed answer of cell 2"),
        # the sheet
        ({"sheet": None}, "the last code cell is to be prediction_sheet()"),
        ({"sheet": f"{SHEET}\n1"}, "the sheet is to be committed without predictions"),
        # (e) lengths
        ({"remember": Text("word " * 151)}, "cell 4: a text of 151 words"),
        ({"below": f"x = '{'y' * 83}'"}, "cell 3: a line of 89 columns"),
    ],
)  # fmt: skip
def test_each_fault_is_found(changed, said):
    found = faults(run(*good(**changed)))
    assert [line for line in found if said in line], found


@pytest.mark.parametrize(
    "changed",
    [
        {"question": Text("At 36,897 bytes, 36 kB, 36.8 kB, week36896x, 0.36896.")},
        {"question": "shown = 36_895 + 2"},
        {"below": "reveal(picture(), '36,896', prediction=prediction_sent)"},
        {"remember": Text("| word |\n|---|\n" + "| word |\n" * 200)},
        {"remember": Text("word " * 150)},
        {"below": f"x = '{'y' * 82}'"},
        {"remember": Text("Next."), "after": Text("36,896 was the answer of the first part.")},
    ],
)
def test_what_is_no_fault(changed):
    parts = good(**changed)
    if "after" in changed:  # the sheet stays last
        parts.append(parts.pop(-2))
    assert faults(run(*parts)) == []


@pytest.mark.parametrize(
    ("claim", "sent", "told"),
    [
        ("assert sent == 3", 3, True),
        ("assert sent in (2, 3)", 3, True),
        ("assert abs(sent - 3) < 1e-9", 3, True),
        ("assert [x for x in (1,)] == [1] and sent == 1 + 2", 3, True),
        ("assert 150 < sent < 165", 158, True),
        ("assert sent >= 0", 3, False),
        ("assert [0, 0, 0, sent][3] == sent", 3, False),
        ("assert abs(sent / sent - 1) < 0.1", 1, False),
        ("assert max(sent, 3) == sent", 3, False),
        ("assert 100 < sent < 200", 158, False),
        ("assert sent == 'hang'", "hang", True),
        ("assert sent != 'crash'", "hang", False),
    ],
)
def test_an_assert_beside_the_experiment_tells_no_answer(claim, sent, told):
    code = RUN.replace("assert sent > 0", claim)
    found = faults(run(*good(run=code, below=None, remember=None), sent=sent))
    assert [line for line in found if "assert tells" in line] == found
    assert bool(found) == told


def test_three_digits_agree_by_chance_far_from_a_measurement():
    text, measured = Text("A text with 41.7 in it."), RUN.replace("formula=sent, ", "")
    second = "side_by_side('second', prediction=prediction_b, measured=loss)"
    near = run(Text("start"), *good(run=measured)[1:4], text, "prediction_b = None", second, SHEET)
    assert any("tells 41.7" in line for line in faults(near))
    early = [Text("start"), text, *good(run=measured)[1:4], Text("x"), "prediction_b = None"]
    far = run(*early, second, SHEET)
    assert faults(far) == []
    formula = second.replace("measured=", "formula=")
    told = run(*early, formula, SHEET)
    assert any("cell 1: tells 41.7" in line for line in faults(told))


@pytest.mark.parametrize(
    ("parts", "tags"),
    [
        (good(below="picture()"), ["no-answer"]),
        ([*good()[:-1], "picture()", SHEET], []),  # below the first text
        (good(below=None, remember=None), []),  # the sheet may follow the last answer
        (good(below="x = 1"), []),
    ],
)
def test_what_may_stand_below_an_answer(parts, tags):
    assert faults(run(*parts, tags=tags)) == []


def test_what_goes_deeper_is_below_the_sheet():
    nb = run(*good(), "x = 1")
    assert any("last code cell" in line for line in faults(nb))
    nb.cells[-1].metadata.tags = ["deeper"]
    assert faults(nb) == []
    nb.cells[-2].metadata.tags = ["deeper"]
    assert any("last code cell" in line for line in faults(nb))


def test_the_next_prediction_ends_what_belongs_to_an_answer():
    second = RUN.replace('"sent"', '"again"').replace("=prediction_sent", "=prediction_b")
    parts = [Text(QUESTION), ASK, RUN, "prediction_b = None", second, "picture()", SHEET]
    [fault] = faults(run(*parts))
    assert fault == "cell 5: a picture or table beside the closed answer of cell 4"


def test_a_printed_number_is_found():
    for tags, found in (
        ([], ["cell 2: a printed number beside the closed answer"]),
        (["no-answer"], []),
    ):
        nb = run(*good(), tags=tags)
        nb.cells[2].outputs.append(new_output("stream", name="stdout", text="it took 5 ms"))
        assert faults(nb) == found
    nb.cells[2].outputs[-1].text = "four ranks"
    assert faults(nb) == []


def test_no_test_compares_the_bytes_of_a_picture():
    code = RUN.replace(', unit="B"', ",\n    also=picture()")
    assert faults(run(*good(run=code))) == []
    found = faults(run(*good(run=code), tags=["nbval-check-output"]))
    assert [line for line in found if "compares the bytes of a picture" in line] == found != []


def test_several_questions_in_one_cell():
    ask = "# Two numbers\nprediction_a = None\nprediction_b = None"
    code = (
        'side_by_side(["a", "b"], prediction=[prediction_a, prediction_b], '
        "\n  measured=[send(), 2 * send()])"
    )
    assert faults(run(*good(ask=ask, run=code, below=None))) == []
    told = run(*good(question=Text("73,792"), ask=ask, run=code, below=None))
    assert faults(told) == ["cell 0: tells 73,792, an answer of cell 2"]


def test_an_answer_with_open_details_is_found():
    nb = run(*good())
    data = nb.cells[2].outputs[0].data
    data["text/html"] = data["text/html"].replace("<details ", "<details open ")
    assert any("folded" in line for line in faults(nb))
    data["text/html"] = data["text/html"].replace("<details open class", "<details class")
    data["text/html"] = data["text/html"].replace("'answer'>", "'answer' open>")
    assert any("open" in line for line in faults(nb))


def test_what_was_committed_wrongly_is_found():
    nb = run(*good())
    nb.cells[2].outputs[0].data["text/plain"] = "sent (B): formula 5"
    assert any("the plain text is not folded" in line for line in faults(nb))
    nb.cells[2].outputs = []
    assert "cell 2: 1 answers, 0 of them folded" in faults(nb)
    nb = run(*good(ask=ASK.replace("None", "7")))
    assert any("commit the notebook without" in line for line in faults(nb))
    assert any("committed without predictions" in line for line in faults(nb))


def test_magics_are_code():
    nb = run(*good())
    nb.cells[3].source = "!echo hello\n%time x = 1"
    assert faults(nb) == []


def test_what_a_page_shows():
    nb = run(Text("a <details><summary>line</summary>hidden</details> b"), "'out'", "picture()")
    shown = render(nb)
    assert shown[0].source.split() == ["a", "line", "b"]
    assert "'out'" in shown[1].source
    assert "'out'" in shown[1].output
    assert [cell.displays for cell in shown] == [0, 0, 1]
    nested = "<details><summary>x</summary><details><summary>y</summary>z</details></details>"
    assert render(run(Text(nested)))[0].source.split() == ["x"]
