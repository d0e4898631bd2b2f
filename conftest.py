"""`pytest --nbval` compares all outputs with the committed ones, but for what is measured.

Cells with the tag `nbval-check-output` have the same output on every machine. In all other outputs,
numbers with their units, pictures, and the order of lines may differ.
"""

import re

from nbval.plugin import IPyNbCell

FOLDERS = re.compile(r"[^\s'\"(]*/(?=[\w.-]+\.py\b)")  # of a file in a traceback
PICTURE = re.compile(r"data:image/png;base64,[^'\"]+")
NUMBER = re.compile(r"[-+−]?\d[\d.,]*(e[-+]?\d+)?")
UNIT = re.compile(r"# ?(ns|µs|ms|s|B|kB|MB|GB)\b")
SPACE = re.compile(r"[ -]{2,}")  # columns are as wide as their numbers
KINDS = ((PICTURE, "picture"), (FOLDERS, ""), (NUMBER, "#"), (UNIT, "# unit"), (SPACE, " "))


def unmeasured(text):
    """Return an output's text without what is measured."""
    if not isinstance(text, str):
        return text
    for pattern, short in KINDS:
        text = pattern.sub(short, text)
    return "\n".join(sorted(line.strip() for line in text.splitlines()))


def pytest_itemcollected(item):
    if isinstance(item, IPyNbCell):
        tags = item.cell.metadata.get("tags", ())
        if "nbval-check-output" not in tags:
            item.sanitize = unmeasured
