"""The instructor's guide: a page a week, with the same sections, and names that exist.

The guide's links are tested with the README's: tests/test_readme.py.
"""

import re
from pathlib import Path

import pytest

from helpers import check

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
GUIDE = NOTEBOOKS / "guide"
PAGES = sorted(GUIDE.glob("week*.md"))
SECTIONS = [
    "Outline",
    "Ask the room",
    "Predictions that often go wrong",
    "Skip, if time is short",
    "Run beforehand",
]


def weeks():
    """The weeks that have notebooks: week01, week02, …"""
    return sorted({path.name[:6] for path in NOTEBOOKS.glob("week*.ipynb")})


def test_every_week_has_a_page():
    written = [page.stem for page in PAGES]
    assert written == sorted(set(written))
    assert written == weeks()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_its_sections_and_fits_on_one_page(page):
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert len(text.split()) < 550
    assert all(len(line) <= 125 for line in text.splitlines())


def test_exercises_that_are_named_exist():
    named = set()
    for page in [*PAGES, GUIDE / "README.md"]:
        named |= set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", page.read_text(encoding="utf-8")))
    not_exercises = {"no_sync", "static_graph", "fully_shard"}
    assert named - not_exercises <= set(check.__all__)
    assert len(named) > 20
