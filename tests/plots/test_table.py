"""Tables in HTML: what stands in the cells, and that no text becomes markup."""

from helpers.plots.table import Markup, table


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
