"""Find an exercise's function in a submitted notebook, with the definitions that it needs.

Only definitions are used: imports, functions, classes, and names with a constant or a lambda. The
rest of a notebook, which trains and draws, does not run. So a function that reads a result of an
earlier cell fails with a NameError: it has to compute what it needs.
"""

import ast
import json
from pathlib import Path

LARGEST = 20_000_000  # bytes of a notebook


class NotANotebook(ValueError):
    """The file cannot be read as a notebook."""


def code_of(path: Path) -> list[str]:
    """Return the source of each code cell.

    Raises:
        NotANotebook: the file is too large, or contains no notebook.
    """
    if path.stat().st_size > LARGEST:
        raise NotANotebook(f"the file has more than {LARGEST:,} bytes")
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [
            source if isinstance(source := cell["source"], str) else "".join(source)
            for cell in cells
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotANotebook(f"the file is no notebook: {type(error).__name__}") from None


def definitions(cells: list[str]) -> list[str]:
    """Return the source of each definition, in order. Cells with a syntax error have none."""
    found = []
    for cell in cells:
        lines = ["" if line.lstrip()[:1] in ("%", "!") else line for line in cell.splitlines()]
        source = "\n".join(lines)
        try:
            statements = ast.parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for statement in statements:
            if is_definition(statement):
                decorators = getattr(statement, "decorator_list", [])
                first = min([statement.lineno, *(one.lineno for one in decorators)])
                found.append("\n".join(lines[first - 1 : statement.end_lineno]))
    return found


def is_definition(statement: ast.stmt) -> bool:
    if isinstance(
        statement,
        ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
    ):
        return True
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        return isinstance(statement.value, ast.Lambda) or is_constant(statement.value)
    return False


def is_constant(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def defined(cells: list[str]) -> set[str]:
    """Return the names of the functions that the cells define at their top level."""
    names = set()
    for source in definitions(cells):
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.FunctionDef):
                names.add(statement.name)
            elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda):
                names |= {one.id for one in statement.targets if isinstance(one, ast.Name)}
    return names
