"""No notebook shows an answer before its prediction, and texts and lines fit on a slide."""

import nbformat
import pytest

from tests.notebooks.test_format import NOTEBOOKS
from tests.notebooks.walk import faults


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_answer_before_its_prediction(path):
    found = faults(nbformat.read(path, as_version=4))
    assert found == [], "\n".join(["", *found])
