"""A parameter that was written, or has other memory, is noticed and named."""

import pytest
import torch

from helpers.parallel.zero.marks import Marks


def write(p):
    with torch.no_grad():
        p.add_(0)


def replace(p):
    p.data = p.data.clone()


@pytest.mark.parametrize("change", [write, replace])
def test_a_changed_parameter_is_named(change):
    held = {name: torch.nn.Parameter(torch.ones(2)) for name in ("first", "second")}
    marks = Marks()
    marks.set(held)
    marks.check(held)
    change(held["second"])
    with pytest.raises(RuntimeError, match=r"second has changed outside of the steps.*use load"):
        marks.check(held)
    marks.set(held)
    marks.check(held)
