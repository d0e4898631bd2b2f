"""Write a cell as HTML for a slide: its text, or its code and what is below it.

Formulas become MathML, and pictures are inside the page. A line of code knows how well a slide may
begin with it, in `data-cut`: 0 is the best place, and a line without it is no place.
"""

import ast
import base64
import html
import mimetypes
import re
import struct
from pathlib import Path

from course import is_note
from ipython_pygments_lexers import IPython3Lexer
from loading import load
from nbconvert.filters import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter

PICTURE = re.compile(r"<img\b(?P<before>[^>]*?)\bsrc=(['\"])(?P<src>[^'\"]+)\2(?P<after>[^>]*)>")
WIDTH = re.compile(r"\bwidth=['\"]?(\d+)['\"]?")
LINK = re.compile(r'<a href="(?!https?:|#|mailto:)([^"#]*)[^"]*">(.*?)</a>', re.S)
STYLE = re.compile(r"<style\b.*?</style>", re.S)
ESCAPES = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
MAGIC = re.compile(r"^( *)([!%].*)$", re.M)

# the site's own conversion of a formula
mathml = load(Path(__file__).resolve().parents[1] / "site" / "_ext" / "mathml.py").mathml


class Renderer(IPythonRenderer):
    """Markdown as HTML, with formulas as MathML."""

    def __init__(self):
        super().__init__(escape=False, exclude_anchor_links=True)

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")

    def block_math(self, body: str) -> str:
        return mathml(body, "block")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")


def unit(cell: dict, folder: Path) -> str:
    """Return a cell for a slide; `folder` is where its pictures' names begin."""
    source = "".join(cell["source"])
    if is_note(cell):
        return f'<aside class="notes">{markdown(source, folder)}</aside>'
    if cell["cell_type"] != "code":
        return f'<div class="unit text">{markdown(source, folder)}</div>'
    outputs = "\n".join(filter(None, (output(one, folder) for one in cell.get("outputs", []))))
    return f'<div class="unit code">{code(source) if source else ""}\n{outputs}</div>'


def markdown(source: str, folder: Path) -> str:
    """Return Markdown as HTML, with pictures inside, and without links to files of the course."""
    text = MarkdownWithMath(renderer=Renderer()).render(source)
    text = PICTURE.sub(lambda hit: inside(hit, folder), text)
    return LINK.sub(link, text)


def link(hit: re.Match) -> str:
    """Return a link to another notebook as one to its deck; of other files, only the words."""
    target = Path(hit[1])
    if target.suffix == ".ipynb":
        return f'<a href="{target.stem}.html">{hit[2]}</a>'
    return hit[2]


def inside(hit: re.Match, folder: Path) -> str:
    """Return a picture with its contents and, if nothing gives it, its size on a sharp screen."""
    src, rest = hit["src"], f"{hit['before'].strip()} {hit['after'].strip().rstrip('/')}".strip()
    if not src.startswith("data:"):
        file = folder / src
        encoded = base64.b64encode(file.read_bytes()).decode()
        src = f"data:{mimetypes.guess_type(file.name)[0]};base64,{encoded}"
    if src.startswith("data:image/png;base64,") and "height=" not in rest:
        wide, high = png_size(src.split(",", 1)[1])
        given = WIDTH.search(rest)
        shown = int(given[1]) if given else wide // 2
        rest = f'{WIDTH.sub("", rest)} width="{shown}" height="{round(shown * high / wide)}"'
    return f'<img {rest} src="{src}">'


def png_size(encoded: str) -> tuple[int, int]:
    """Return a PNG's width and height in its own pixels."""
    return struct.unpack(">II", base64.b64decode(encoded[:64])[16:24])


def code(source: str) -> str:
    """Return code in colours, a line in a line, with the places where a slide may begin."""
    source = re.sub(r"\n\n\n+", "\n\n", source)  # an empty line parts functions well enough
    coloured = highlight(source, IPython3Lexer(stripnl=False), HtmlFormatter(nowrap=True))
    places = cuts(source)
    lines = [
        f'<span class="line"{f" data-cut={places[n]}" if n in places else ""}>{line}\n</span>'
        for n, line in enumerate(coloured.rstrip("\n").split("\n"))
    ]
    return f'<pre class="input"><code>{"".join(lines)}</code></pre>'


def colours(where: str) -> str:
    """Return the style sheet of the colours of code."""
    return HtmlFormatter(style="default").get_style_defs(where)


def cuts(source: str) -> dict[int, int]:
    """Return {line: depth} of the lines, from 0, where a statement begins: 0 is not indented."""
    try:
        # a line for the shell becomes a statement of the same length
        tree = ast.parse(MAGIC.sub(r"\1pass", source))
    except SyntaxError:
        lines = source.split("\n")
        return {n: 0 for n in range(1, len(lines)) if not lines[n - 1].strip() and lines[n].strip()}
    found: dict[int, int] = {}
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody", "handlers"):
            statements = getattr(node, field, [])
            for one in (statements if isinstance(statements, list) else [])[field == "body" :]:
                first = [one.lineno, *(d.lineno for d in getattr(one, "decorator_list", []))]
                found.setdefault(above(source, min(first) - 1), one.col_offset // 4)
    if isinstance(tree, ast.Module) and tree.body:
        found.pop(0, None)
    return found


def above(source: str, line: int) -> int:
    """Return the first line of the comment right above a statement, or the statement's own."""
    lines = source.split("\n")
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
    return line


def output(one: dict, folder: Path) -> str:
    """Return one output; nothing if it has no form for a page."""
    if one["output_type"] == "stream":
        return terminal("".join(one["text"]))
    if one["output_type"] == "error":
        return terminal("\n".join(one["traceback"]), "error")
    data = {kind: "".join(value) for kind, value in one.get("data", {}).items()}
    if "text/html" in data:
        text = PICTURE.sub(lambda hit: inside(hit, folder), STYLE.sub("", data["text/html"]))
        return f'<div class="output">{text}</div>'
    if "image/png" in data:
        return f'<div class="output">{picture(data["image/png"], one)}</div>'
    if "text/markdown" in data:
        return f'<div class="output">{markdown(data["text/markdown"], folder)}</div>'
    return terminal(data["text/plain"]) if "text/plain" in data else ""


def picture(png: str, one: dict) -> str:
    """Return a picture with its words and its size in CSS pixels."""
    about = one.get("metadata", {}).get("image/png", {})
    wide, high = png_size(png.replace("\n", ""))
    wide, high = about.get("width", wide // 2), about.get("height", high // 2)
    words = html.escape(about.get("alt", ""), quote=True)
    encoded = png.replace("\n", "")
    return (
        f'<img alt="{words}" width="{wide}" height="{high}" src="data:image/png;base64,{encoded}">'
    )


def terminal(text: str, kind: str = "") -> str:
    """Return what a cell printed, in its colours."""
    if not ESCAPES.sub("", text).strip():
        return ""
    return f'<pre class="output terminal {kind}">{ansi2html(text.rstrip())}</pre>'
