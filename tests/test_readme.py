"""The README's links and pictures lead to files of this repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"<!--.*?-->", "", README, flags=re.S))
HEADINGS = re.findall(r"^#+ (.*)$", README, flags=re.M)


@pytest.mark.parametrize("link", sorted({link for link in LINKS if "://" not in link}))
def test_a_link_leads_somewhere(link):
    path, _, place = link.partition("#")
    assert (ROOT / path).exists()
    if place and not path:
        words = [re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in HEADINGS]
        assert place in words


def test_every_notebook_is_in_the_table():
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{notebook.name}" in LINKS
