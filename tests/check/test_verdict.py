"""A verdict is true only when passed, and its text is escaped where it becomes HTML."""

from helpers.check.verdict import Verdict


def test_truth():
    assert Verdict("e", "passed")
    assert not Verdict("e", "wrong", "x")
    assert not Verdict("e", "not written yet")


def test_text():
    text = repr(Verdict("mean", "wrong", "rank 1 returned 3", "Look at rank 1."))
    assert text.splitlines() == ["✗ mean: wrong", "rank 1 returned 3", "Hint: Look at rank 1."]


def test_html_is_escaped():
    page = Verdict("mean", "wrong", "<built-in>", "a < b")._repr_html_()
    assert "&lt;built-in&gt;" in page
    assert "a &lt; b" in page
