"""What can be folded: tables, figures and texts, as HTML."""

import base64

import pandas as pd
from matplotlib.figure import Figure

from helpers.plots.folded import folded, image, markup
from helpers.plots.picture import Picture

PNG = b"\x89PNG and more"


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
