"""Read a submitted notebook: find an exercise's function, with the definitions that it needs.

Only definitions are used: imports, functions, classes, and names for a value that no call makes.
The rest of a notebook, which trains and draws, does not run. So a function that reads a result of
an earlier cell fails with a NameError: it has to compute what it needs.

`python -m helpers.check.grading.definitions < notebook` writes them as JSON. `read` runs it so: a
text can end the program that parses it.
"""

import ast
import json
import os
import re
import resource
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COURSE = Path(__file__).resolve().parents[3]
LARGEST = 20_000_000  # characters of the code of a notebook
LARGEST_FILE = 256 << 20  # bytes of the notebook with its outputs, which nobody reads

# Expressions that run no code of others, of names and constants.
QUIET = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set,
    ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Starred,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
EVERYTHING = "*"  # the name of what every function needs
MAGIC = re.compile(r"^(\s*)(?:[%!]|\w[\w, ]*=\s*[%!]).*")  # a line for IPython or the shell
DEFINED = re.compile(r"^(?:async +def|def|class) +(\w+)", re.MULTILINE)
SECONDS = 60  # to parse a notebook
MEMORY = 4 << 30  # bytes to parse it


class NotANotebook(ValueError):
    """The file cannot be read as a notebook."""


def code_of(content: str | bytes) -> list[str]:
    """Return the source of each code cell.

    Raises:
        NotANotebook: this is no notebook.
    """
    try:
        cells = json.loads(content)["cells"]
        found = [text(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotANotebook(f"the file is no notebook: {type(error).__name__}") from None
    if sum(map(len, found)) > LARGEST:
        raise NotANotebook(f"the code has more than {LARGEST:,} characters")
    return found


def text(source: str | list[str]) -> str:
    """Return the source as one text; a character that UTF-8 cannot hold becomes a question mark."""
    whole = source if isinstance(source, str) else "".join(source)
    return whole.encode("utf-8", "replace").decode()


@dataclass(frozen=True)
class Notebook:
    """What a notebook defines.

    Attributes:
        sources: of the definitions, in order.
        binds, uses: for each of them, the names that it defines, and those that stand in it.
        functions: the names of functions and of what may be one.
        broken: for functions whose cell cannot be parsed, why.
    """

    sources: list[str]
    binds: list[list[str]]
    uses: list[list[str]]
    functions: list[str]
    broken: dict[str, str]

    def needed_by(self, name: str) -> list[str]:
        """Return the sources that this function needs: a notebook's imports may take long."""
        wanted, size = {name, EVERYTHING}, 0
        while size < len(wanted):
            size = len(wanted)
            for binds, uses in zip(self.binds, self.uses, strict=True):
                if wanted.intersection(binds):
                    wanted.update(uses)
        found = zip(self.sources, self.binds, strict=True)
        return [source for source, binds in found if wanted.intersection(binds)]


def definitions(cells: list[str]) -> Notebook:
    """Return what the cells define. Imports, and names for numbers, define no function."""
    found = Notebook([], [], [], [], {})
    for cell in cells:
        cell = cell.replace("\r\n", "\n").replace("\r", "\n")  # as Python counts lines
        try:
            source, statements = parsed(cell)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = f"its cell cannot be read: {type(error).__name__}: {error}"
            found.broken.update(dict.fromkeys(DEFINED.findall(cell), why))
            continue
        lines = source.split("\n")
        for statement in statements:
            if is_definition(statement):
                decorators = getattr(statement, "decorator_list", [])
                first = min([statement.lineno, *(one.lineno for one in decorators)])
                found.sources.append("\n".join(lines[first - 1 : statement.end_lineno]))
                found.functions.extend(functions(statement))
                found.binds.append(bound(statement))
                found.uses.append(sorted({*used(statement)}))
    return found


def parsed(cell: str) -> tuple[str, list[ast.stmt]]:
    """Return the cell's Python and its statements. Lines for IPython count as `pass`.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as ast.parse.
    """
    try:
        return cell, ast.parse(cell).body  # a line of an expression may begin with % or !=
    except SyntaxError:
        source = "\n".join(MAGIC.sub(r"\1pass", line) for line in cell.split("\n"))
        return source, ast.parse(source).body


def is_definition(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Import, ast.ImportFrom, *FUNCTIONS)):
        return True
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        if isinstance(statement.value, ast.Lambda):
            return True
        return all(isinstance(one, QUIET) for one in ast.walk(statement.value))
    return False


def functions(statement: ast.stmt) -> list[str]:
    """Return the names of functions, classes and lambdas, and of other names for them."""
    value = getattr(statement, "value", None)
    if isinstance(statement, FUNCTIONS) or isinstance(value, ast.Lambda | ast.Name | ast.Attribute):
        return bound(statement)
    return []


def bound(statement: ast.stmt) -> list[str]:
    """Return the names that a definition defines. For a module's names without a list: all."""
    if isinstance(statement, FUNCTIONS):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        every = getattr(statement, "module", "") == "__future__"
        given = [one.asname or one.name.split(".")[0] for one in statement.names]
        return [EVERYTHING] if every or "*" in given else given
    stored = (one for one in ast.walk(statement) if isinstance(one, ast.Name))
    return [one.id for one in stored if isinstance(one.ctx, ast.Store)]


def used(statement: ast.stmt) -> Iterator[str]:
    return (one.id for one in ast.walk(statement) if isinstance(one, ast.Name))


def read(path: Path) -> Notebook:
    """Return the definitions of a notebook.

    Raises:
        NotANotebook: the file is too large, contains no notebook, or is no file at all.
    """
    line = [sys.executable, "-P", "-m", "helpers.check.grading.definitions"]
    place, seconds = {"PYTHONPATH": str(COURSE)}, 2 * SECONDS
    try:
        done = subprocess.run(
            line, input=content_of(path), capture_output=True, env=place, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise NotANotebook("the notebook takes too long to read") from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise NotANotebook("Python cannot parse the notebook: a line nests too deeply") from None
    if "error" in found:
        raise NotANotebook(found["error"])
    return Notebook(**found)


def content_of(path: Path) -> bytes:
    """Return the bytes of a file. A link could lead to another student's file, or to a device."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        why = "a link is no notebook" if path.is_symlink() else f"not readable: {error.strerror}"
        raise NotANotebook(why) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotANotebook("this is no file")
    with os.fdopen(file, "rb") as opened:
        content = opened.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise NotANotebook(f"the file has more than {LARGEST_FILE:,} bytes")
    return content


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")  # an invalid escape in a text
    try:
        found = vars(definitions(code_of(sys.stdin.buffer.read())))
    except NotANotebook as error:
        found = {"error": str(error)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
