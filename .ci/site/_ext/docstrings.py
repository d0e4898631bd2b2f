"""Show a module's docstring as it is written: its lists, its drawings, commands and formulas."""

import re

from sphinx.application import Sphinx

GAP = re.compile(r" {2,}(?=\S)")


def listed(lines: list[str]) -> list[str]:
    """Return the lines with a list in place of each glossary.

    A line of a glossary has names and their meanings, two spaces or more between them. If a line
    has no pairs of these, or a pair goes on below it, the glossary is shown as it is.
    """
    found, run = [], []
    for line in [*lines, ""]:
        begins = GAP.search(line) and not line.startswith(" ")
        if begins or (run and line.startswith("  ")):
            run.append(line)
            continue
        if run:
            found += ["", *items(run), ""]
        run = []
        found.append(line)
    return found[:-1]


def items(run: list[str]) -> list[str]:
    """Return a glossary as a list; as it is, if it is no list of pairs."""
    cells = [GAP.split(line.rstrip()) for line in run]
    pairs = [own[k : k + 2] for own in cells for k in range(0, len(own), 2)]
    single = all(len(own) == 2 for own in cells)
    if any(len(pair) < 2 for pair in pairs) or (not single and any(not own[0] for own in cells)):
        return ["::", "", *(f"    {line}" for line in run)]
    return [f"- ``{name}``: {text}" if name else f"  {text}" for name, text in pairs]


def literal(lines: list[str]) -> list[str]:
    """Return the lines with a mark before each indented block that follows an empty line."""
    found, before, inside = [], "", False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not before.strip() and not inside:
            found += ["::", ""]
            inside = True
        elif line.strip() and not indented:
            if inside and before.strip():
                found.append("")
            inside = False
        found.append(line)
        before = line
    return found


def process(app, what, name, obj, options, lines):
    if what == "module":
        lines[:] = listed(literal(lines))


def setup(app: Sphinx):
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
