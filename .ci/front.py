"""The site's front page: what the course is, three paths, and a card for each week."""

import base64
import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

ROW = re.compile(r"^\| *(.+?) *\| *(.+?) *\| *\[(.+?)\]\(notebooks/([^)]+)\.ipynb\) *\|$", re.M)
CODE = re.compile(r"^```python\n.*?^```$", re.M | re.S)
FIGURE = re.compile(r"!\[[^\]]*\]\((\S+\.png)\)")


class Part(NamedTuple):
    """A row of the README's table of weeks."""

    week: str
    question: str
    title: str
    name: str

    @property
    def heading(self) -> str:
        name = f"Week {self.week}" if self.week.isdigit() else self.week.capitalize()
        return f"{name} · {self.title}"


def weeks_of(readme: str, names) -> list[list[Part]]:
    """Return the parts of each week, in the order of the README's table."""
    weeks: dict[str, list[Part]] = {}
    for part in map(Part._make, ROW.findall(readme)):
        if part.name in names:
            weeks.setdefault(part.week, []).append(part)
    return list(weeks.values())


def front_page(text: str, readme: str, replay: str, pages: dict[str, Path], more, source) -> str:
    """Return the front page; write its pictures to the folder `source`/cards.

    Args:
        text: of `front.md`, with names for what is filled in here.
        replay: a recorded run, as HTML.
        pages: the executed notebooks, by name.
        more: the pages after the weeks.
    """
    weeks = weeks_of(readme, pages)
    (source / "cards").mkdir()
    known = {part.name for week in weeks for part in week}
    listed = [f"{week[0].heading} <notebooks/{week[0].name}>" for week in weeks]
    others = [f"notebooks/{name}" for name in sorted(set(pages) - known)]
    lists = {"Weeks": listed + others, "More": more}
    trees = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {name}", "", *entries, "```", ""])
        for name, entries in lists.items()
    ]
    code = CODE.search(readme)
    filled = {
        "CODE": code[0] if code else "",
        "REPLAY": replay,
        "FIRST": f"notebooks/{weeks[0][0].name}.ipynb",
        "WEEKS": "\n".join(card(week, pages, source) for week in weeks),
        "CONTENTS": "\n".join(trees),
    }
    return re.sub("|".join(filled), lambda found: filled[found[0]], text)


def card(week: list[Part], pages: dict[str, Path], source: Path) -> str:
    """Return a week's card: a picture, its question, its parts."""
    first, *parts = week
    image = source / "cards" / f"{Path(first.name).name}.png"
    found = any(picture(pages[part.name], source / "notebooks" / part.name, image) for part in week)
    lines = [
        "```{container} card-of-week",
        *[f"![](cards/{image.name})\n"] * found,
        f"**[{first.heading}](notebooks/{first.name}.ipynb)**\n\n{first.question}\n",
        *(f"- [{part.title}](notebooks/{part.name}.ipynb)" for part in parts),
        "```",
    ]
    return "\n".join(lines)


def picture(notebook: Path, page: Path, image: Path) -> bool:
    """Write the first picture that a notebook shows to the file `image`, if it has one.

    What is folded in an answer is left out.

    Args:
        page: the notebook's place on the site, from where it links figures.
    """
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        linked = FIGURE.search("".join(cell["source"]))
        if cell["cell_type"] == "markdown" and linked and (page.parent / linked[1]).exists():
            shutil.copy2(page.parent / linked[1], image)
            return True
        for output in cell.get("outputs", ()):
            if png := output.get("data", {}).get("image/png"):
                image.write_bytes(base64.b64decode("".join(png)))
                return True
    return False
