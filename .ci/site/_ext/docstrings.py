"""Show the indented blocks of docstrings as they are: drawings, commands and formulas."""

from sphinx.application import Sphinx


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
        lines[:] = literal(lines)


def setup(app: Sphinx):
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
