"""What each cell of a notebook shows on its page on the web while every `<details>` is closed."""

from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser

from nbconvert.exporters import HTMLExporter
from nbconvert.filters import markdown2html

DISPLAYS = {"img", "svg", "table"}
SILENT = {"script", "style"}
INLINE = {"span", "b", "strong", "em", "code", "a", "i", "sub", "sup"}
FORMATS = (
    HTMLExporter().default_config.NbConvertBase.display_data_priority
)  # of an output's formats, a page has the first


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


class Page(HTMLParser):
    """Reads the HTML of one text cell, or of what is below a code cell."""

    def __init__(self, html: str):
        super().__init__()
        self.text, self.displays, self.open_answers, self.silent, self.summary = "", 0, 0, 0, 0
        self.details = []  # for each <details> around here: whether it is closed
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "details":
            self.details.append("open" not in attributes)
            answer = "answer" in (attributes.get("class") or "").split()
            self.open_answers += answer and "open" in attributes
        self.silent += tag in SILENT
        self.summary += tag == "summary"
        self.displays += tag in DISPLAYS and not any(self.details)
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
        if not self.silent and not hidden:
            self.text += data


def html_of(output) -> str:
    """An output as a page has it; a picture without its bytes."""
    if output.output_type == "stream":
        return f"<pre>{escape(output.text)}</pre>"
    if output.output_type == "error":
        return f"<pre>{escape(' '.join(output.traceback))}</pre>"
    first = next((name for name in FORMATS if name in output.data), None)
    match first:
        case "text/html" | "image/svg+xml":
            return output.data[first]
        case "text/markdown":
            return markdown2html(output.data[first])
        case "text/plain" | "text/latex":
            return f"<pre>{escape(output.data[first])}</pre>"
        case "image/png" | "image/jpeg":
            return "<img>"
    return ""


def render(nb) -> list[Shown]:
    """What each cell shows, in order."""
    shown = []
    for cell in nb.cells:
        if cell.cell_type != "code":
            shown.append(Shown(source=Page(markdown2html(cell.source)).text))
            continue
        page = Page("".join(map(html_of, cell.outputs)))
        shown.append(Shown(cell.source, page.text, page.displays, page.open_answers))
    return shown
