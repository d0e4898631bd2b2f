"""The README and the pages of the guide: short enough, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "notebooks" / "guide").glob("*.md"))]


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as the web makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_link_leads_somewhere(page):
    for link in (link for link in links(page) if "://" not in link):
        path, _, place = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not place or place in anchors(target), link


def test_every_notebook_and_every_page_is_in_a_table():
    named = set(links(README))
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{notebook.name}" in named
    for page in PAGES[1:]:
        assert page.stem.startswith("week") or f"notebooks/guide/{page.name}" in named


def test_the_readme_stays_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 160


@pytest.mark.parametrize("page", ["README.md", "notebooks/guide/launchers.md"])
def test_the_first_command_for_one_machine_is_one_that_nobody_else_reaches(page):
    commands = re.findall(r"(\S+) torchrun --standalone", (ROOT / page).read_text("utf-8"))
    assert commands[0] == "helpers.runtime.alone"
