"""`show` gives a function's source: plain in a terminal, highlighted in a notebook."""

import IPython
import pytest
from IPython.display import Code

from helpers.plots.source import show


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
