"""`pytest --nbval` on all outputs: what is measured may differ from run to run, words may not."""

from types import SimpleNamespace

import pytest

from helpers.plots.page import image
from tests.conftest import ROOT, ci


@pytest.fixture(scope="module")
def rules():
    return ci("loading").load(ROOT / "conftest.py")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("launch 661 ms, a call 71 ms", "launch 1.2 s, a call 123.5 ms", True),
        ("from 3.2e-10 to -4", "from 1 to 17", True),
        ("launch 661 ms", "a call 661 ms", False),
        ("12 tokens", "12 bytes", False),
        ("[rank 0] a\n[rank 1] b", "[rank 1] b\n[rank 0] a", True),
        ("[rank 0] a\n[rank 1] b", "[rank 0] a", False),
        ("        ms\nplain  45", "         ms\nplain  390", True),
        (image(b"one", alt="a"), image(b"other", alt="a"), True),
        (image(b"one", alt="a"), image(b"one", alt="b"), False),
        ('  File "/x/.venv/y/z.py", line 3', '  File ".venv/y/z.py", line 14', True),
        ('  File "x/y.py", line 3', '  File "x/z.py", line 3', False),
    ],
)
def test_what_may_differ(rules, one, other, equal):
    assert (rules.unmeasured(one) == rules.unmeasured(other)) == equal


def test_outputs_that_are_the_same_everywhere_are_compared_as_they_are(rules, monkeypatch):
    monkeypatch.setattr(rules, "IPyNbCell", SimpleNamespace)
    cells = [
        SimpleNamespace(cell=SimpleNamespace(metadata={"tags": tags}))
        for tags in (["deeper"], ["deeper", "nbval-check-output"])
    ]
    for cell in cells:
        rules.pytest_itemcollected(cell)
    assert [hasattr(cell, "sanitize") for cell in cells] == [True, False]
