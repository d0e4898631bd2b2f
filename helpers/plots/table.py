"""Rows and columns as HTML, for objects that a notebook shows as a table."""

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """A cell that already is HTML."""


def table(
    rows: Iterable[Sequence[object]],
    *,
    head: Sequence[object] = (),
    title: object = "",
    align: Sequence[str] = (),
    style: str = "",
) -> str:
    """Return an HTML table; every cell's text is escaped, except `Markup`.

    Args:
        rows: the cells of each row.
        head: names of the columns.
        title: a line over all columns.
        align: "left", "right" or "center" for each column; by default Jupyter's own.
        style: CSS of the table.
    """
    rows = [list(row) for row in rows]
    width = max([len(head), *map(len, rows)], default=1)
    lines = []
    if title:
        lines.append(f"<tr><th colspan='{width}'>{cell(title)}</th></tr>")
    if head:
        lines.append(f"<tr>{''.join(f'<th>{cell(name)}</th>' for name in head)}</tr>")
    sides = [f" style='text-align:{side}'" for side in align]
    sides += [""] * (width - len(sides))
    for row in rows:
        cells = (f"<td{side}>{cell(value)}</td>" for side, value in zip(sides, row, strict=False))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    attributes = f" style='{style}'" if style else ""
    return f"<table{attributes}>{''.join(lines)}</table>"


def cell(value: object) -> str:
    return value if isinstance(value, Markup) else html.escape(str(value))
