"""The cells of a notebook: what they ask, what they fold, and what their page shows."""

import ast
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.notebooks.rendered import Shown, render
from tests.notebooks.spelled import parse

ANSWER = re.compile(r"<details class='answer'>(.*?)</details>", re.S)


@dataclass
class Cell:
    """One cell, its syntax tree if it has code, and what its page shows."""

    number: int
    kind: str
    source: str
    tags: list[str]
    outputs: list
    shown: Shown
    tree: ast.AST = field(default_factory=lambda: ast.Module([], []))

    def calls(self, *names: str) -> Iterator[ast.Call]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and called(node) in names:
                yield node

    @property
    def folds(self) -> list[ast.Call]:
        return list(self.calls("side_by_side", "reveal"))

    @property
    def asks(self) -> list[str]:
        """The names of a cell that holds nothing but `name = None`; else none."""
        names = []
        for node in getattr(self.tree, "body", []):
            if not (isinstance(node, ast.Assign) and getattr(node.value, "value", 0) is None):
                return []
            if not isinstance(node.targets[0], ast.Name):
                return []
            names += [target.id for target in node.targets]
        return names

    @property
    def sets(self) -> set[str]:
        nodes = ast.walk(self.tree)
        return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}

    def html(self) -> list[str]:
        return [o["data"]["text/html"] for o in self.outputs if "text/html" in o.get("data", {})]

    def plain(self) -> list[str]:
        return [o["data"]["text/plain"] for o in self.outputs if "text/plain" in o.get("data", {})]

    def answers(self) -> list[tuple[str, str]]:
        """(source, text) of every answer that is folded in this cell's output."""
        found = []
        for body in ANSWER.findall("".join(self.html())):
            table = body.split("</summary>")[1].split("</table>")[0]
            head = [name.removesuffix(" here") for name in re.findall("<th>(.*?)</th>", table)[1:]]
            for row in table.split("<tr>"):
                values = re.findall("<td><b>(.*?)</b></td>", row)
                found += [(s, html.unescape(v)) for s, v in zip(head, values, strict=False) if v]
        return found


def read(nb) -> list[Cell]:
    cells = []
    for number, (cell, shown) in enumerate(zip(nb.cells, render(nb), strict=True)):
        cells.append(
            Cell(
                number=number,
                kind=cell.cell_type,
                source=cell.source,
                tags=cell.metadata.get("tags", []),
                outputs=cell.get("outputs", []),
                shown=shown,
            )
        )
        if cell.cell_type == "code":
            cells[-1].tree = parse(cell.source)
    return cells


def called(node: ast.Call) -> str:
    """The last name of what is called: `side_by_side` in `check.side_by_side(…)`."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))
