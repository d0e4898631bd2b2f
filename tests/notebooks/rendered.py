"""A notebook as its page on the web: what each cell shows while every `<details>` is closed."""

from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser

from nbconvert import HTMLExporter

DISPLAYS = {"img", "svg", "table"}
SILENT = {"script", "style"}
INLINE = {"span", "b", "strong", "em", "code", "a", "i", "sub", "sup"}


@dataclass
class Shown:
    """What one cell shows.

    Attributes:
        source: the visible text of a text cell, or the code of a code cell.
        output: the visible text below a code cell.
        displays: how many pictures and tables are visible below a code cell.
        open_answers: how many folded answers are open.
    """

    source: str = ""
    output: str = ""
    displays: int = 0
    open_answers: int = 0


@dataclass
class Page(HTMLParser):
    cells: dict[str, Shown] = field(default_factory=dict)

    def __post_init__(self):
        super().__init__()
        self.cell, self.part, self.silent, self.summary = None, "source", 0, 0
        self.details = []  # for each <details> around here: whether it is closed

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        classes = (attributes.get("class") or "").split()
        if (attributes.get("id") or "").startswith("cell-id="):
            self.cell = self.cells.setdefault(attributes["id"].removeprefix("cell-id="), Shown())
            self.part = "source"
        if "jp-Cell-outputWrapper" in classes:
            self.part = "output"
        if tag == "details":
            self.details.append("open" not in attributes)
            if self.cell and "answer" in classes and "open" in attributes:
                self.cell.open_answers += 1
        self.silent += tag in SILENT
        self.summary += tag == "summary"
        if tag in DISPLAYS and self.cell and self.part == "output" and not any(self.details):
            self.cell.displays += 1
        self.separate(tag)

    def handle_endtag(self, tag):
        if tag == "details" and self.details:
            self.details.pop()
        self.silent -= tag in SILENT
        self.summary -= tag == "summary"
        self.separate(tag)

    def separate(self, tag):
        """Texts of two table cells or paragraphs do not run into one number."""
        if tag not in INLINE:
            self.handle_data(" ")

    def handle_data(self, data):
        # The line of the innermost <details> shows if those around it are open.
        hidden = any(self.details[:-1]) if self.summary else any(self.details)
        if self.cell and not self.silent and not hidden:
            setattr(self.cell, self.part, getattr(self.cell, self.part) + data)


@cache
def exporter() -> HTMLExporter:
    """The one that `make course` uses; its templates are read once."""
    return HTMLExporter()


def render(nb) -> list[Shown]:
    """What each cell shows on the page that nbconvert writes, in order."""
    html, _ = exporter().from_notebook_node(nb)
    page = Page()
    page.feed(html)
    # A cell without text and outputs may have no place on the page.
    return [page.cells.get(cell.id, Shown()) for cell in nb.cells]
