"""What a page shows besides pictures: tables, folded answers, source code, live bars and curves."""

import base64

import IPython
import pandas as pd
import pytest
from IPython.display import Code
from matplotlib.figure import Figure

from helpers.plots.page import (
    Markup,
    bars_html,
    bars_text,
    curve_output,
    folded,
    image,
    markup,
    printable,
    show,
    table,
)
from helpers.plots.picture import Picture
from helpers.plots.style import RANK_COLORS

PNG = b"\x89PNG and more"


def test_rows_head_title_and_sides():
    found = table([["a", 1]], head=["name", "value"], title="all", align=["left", "right"])
    assert found == (
        "<table><tr><th colspan='2'>all</th></tr><tr><th>name</th><th>value</th></tr>"
        "<tr><td style='text-align:left'>a</td><td style='text-align:right'>1</td></tr></table>"
    )


def test_text_is_escaped_and_markup_is_not():
    found = table([["<b>&'\"", Markup("<i>x</i>")]], head=["<h>"], title="<t>")
    assert "<b>" not in found
    assert "<h>" not in found
    assert "<t>" not in found
    assert "&lt;b&gt;&amp;&#x27;&quot;" in found
    assert "<td><i>x</i></td>" in found


def test_no_rows_and_uneven_rows():
    assert table([]) == "<table></table>"
    assert table(iter([iter(["a"])]), style="border:none") == (
        "<table style='border:none'><tr><td>a</td></tr></table>"
    )
    assert table([], title="t") == "<table><tr><th colspan='0'>t</th></tr></table>"
    assert "colspan='3'" in table([["a"]], head=["x", "y", "z"], title="t")
    assert table([["a"], ["b", "c"]], title="t").count("<td>") == 3
    assert table([["a", "b"]], align=["right"]) == (
        "<table><tr><td style='text-align:right'>a</td><td>b</td></tr></table>"
    )
    assert "colspan='2'" in table([["a"], ["b", "c"]], title="t")
    assert table([], head=["x"]) == "<table><tr><th>x</th></tr></table>"


def example():
    return "shown"


def test_plain(capsys):
    show(example)
    assert capsys.readouterr().out == 'def example():\n    return "shown"\n\n'
    with pytest.raises(TypeError):
        show(len)


def test_in_a_notebook(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython, "get_ipython", object)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    show(example)
    assert isinstance(shown[0], Code)
    assert 'return "shown"' in shown[0].data
    assert shown[0].language == "python"
    assert len(shown) == 1


class WithPng:
    def _repr_png_(self):
        return PNG, {"alt": "a < 'b'", "width": 70}


class WithHtml:
    def _repr_html_(self):
        return "<b>x</b>"

    def _repr_png_(self):
        return PNG


def test_folded_is_closed_html():
    found = folded("<b>line</b>", "<p>body</p>")
    assert found == ("<details class='answer'><summary><b>line</b></summary><p>body</p></details>")


def test_html_comes_first():
    assert markup(WithHtml()) == "<b>x</b>"
    assert "<table" in markup(pd.DataFrame({"a": [1]}))


def test_an_image_holds_its_bytes_and_its_text():
    found = markup(WithPng())
    assert base64.b64encode(PNG).decode() in found
    assert "alt='a &lt; &#x27;b&#x27;'" in found
    assert "width='70'" in found


def test_image_takes_what_jupyter_stores():
    text = base64.encodebytes(PNG * 20).decode()
    assert image(text) == image(PNG * 20)
    assert "\n" not in image(text)


def test_figures_with_and_without_a_way_to_show_themselves():
    for kind in (Picture, Figure):
        made = kind(figsize=(1, 1), dpi=40)
        made.subplots().plot([1, 2])
        found = markup(made)
        assert found.startswith("<img src='data:image/png;base64,iVBOR")
    assert "width" not in found  # the Figure says no width
    made = Picture(figsize=(1, 1), alt="a & b")
    assert "alt='a &amp; b' width='80'>" in markup(made)


def test_other_objects_and_texts_are_escaped():
    assert markup("a < b\nc") == "<pre>a &lt; b\nc</pre>"
    assert markup(3) == "<pre>3</pre>"
    assert markup(["<b>"]) == "<pre>[&#x27;&lt;b&gt;&#x27;]</pre>"


def test_bars():
    bars = {("fit", 1): (5, 10), ("fit", 0): (10, 10), ("", 2): (7, None)}
    assert bars_text(bars) == "rank 2: 7, fit rank 0: 10/10, fit rank 1: 5/10"
    page = bars_html(bars)
    assert page.count("<tr>") == 3
    assert "width:50%" in page
    assert "10/10" in page
    assert [f"width:{share}%" in page for share in (100, 50, 0)] == [True, True, False]
    assert [f"background:{color};" in page for color in RANK_COLORS[:4]] == [True] * 3 + [False]
    assert "<td style='text-align:left'>7</td>" in page  # of a loop without an end
    assert page.count("width:100%") == 2
    ranks = [page.index(f"rank {rank}") for rank in (2, 0, 1)]
    assert ranks == sorted(ranks)  # by label, then by rank


def test_ranks_are_numbers_and_shares_are_rounded():
    bars = {("", 10): (1, 3), ("", 2): (2, 3)}
    page = bars_html(bars)
    assert page.index("rank 2") < page.index("rank 10")
    assert page.index("width:67%") < page.index("width:33%")
    assert bars_text(bars) == "rank 2: 2/3, rank 10: 1/3"


def test_an_empty_loop_has_a_full_bar_of_nothing():
    assert "0/0" in bars_html({("", 0): (0, 0)})
    assert "width:0%" in bars_html({("", 0): (0, 0)})
    assert bars_text({("", 0): (0, 0)}) == "rank 0: 0/0"


def test_a_label_is_text_whatever_is_in_it():
    """Neither HTML for the notebook, nor commands for the terminal, nor a line of its own."""
    bars = {("<img src=x>\x1b]0;title\x07\n[rank 9] ok é", 0): (1, 2)}
    assert "<img" not in bars_html(bars)
    assert "&lt;img src=x&gt;" in bars_html(bars)
    assert bars_text(bars) == "<img src=x>\\x1b]0;title\\x07\\n[rank 9] ok é rank 0: 1/2"
    assert "\x1b" not in bars_html(bars)
    assert len(bars_text({("x" * 10_000, 0): (1, 2)})) < 100
    assert printable("x" * 80) == "x" * 80
    assert printable("x" * 81) == "x" * 79 + "…"
    assert printable(7) == "7"


def test_png_is_small():
    steps = list(range(500))
    data, metadata = curve_output("loss", dict.fromkeys(range(4), (steps, steps)))
    assert metadata["image/png"]["alt"] == data["text/plain"]
    assert "A line chart over step (" in data["text/plain"]
    assert (metadata["image/png"]["width"], metadata["image/png"]["height"]) == (416, 208)
    data = base64.b64decode(data["image/png"])
    assert data.startswith(b"\x89PNG")
    assert len(data) < 60_000
