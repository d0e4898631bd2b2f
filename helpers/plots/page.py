"""What a notebook's page shows besides pictures: tables, folded answers, source code, live bars.

Nothing here imports Matplotlib before it draws.
"""

import base64
import html
import inspect
import io
from collections.abc import Iterable, Mapping, Sequence

from helpers.plots.style import rank_color

LABEL_SHOWN = 80  # characters

Bars = Mapping[tuple[str, int], tuple[int, int | None]]  # (label, rank) -> (done, total or None)
Curves = Mapping[int, tuple[list, list]]  # rank -> (x, y)


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


def show(thing):
    """Display the source of a function, class or module: highlighted in a notebook, else plain.

    Raises:
        TypeError: it has no Python source (a built-in, an instance).
    """
    from IPython import get_ipython
    from IPython.display import Code, display

    source = inspect.getsource(thing)
    if get_ipython() is None:
        print(source)
    else:
        display(Code(source, language="python"))


def folded(line: str, body: str) -> str:
    """One visible line, and under it a closed `<details>`: HTML that needs no script.

    JupyterLab, GitHub and pages written by nbconvert all show it closed.

    Args:
        line: HTML of the line that the reader sees.
        body: HTML that stays hidden until the reader clicks on the line.
    """
    return f"<details class='answer'><summary>{line}</summary>{body}</details>"


def markup(shown: object) -> str:
    """The HTML of whatever a cell can show: a table, a figure, a text.

    An object with `_repr_html_` gives its own HTML. A figure becomes an image inside the HTML, with
    its alternative text. Any other object becomes the text that Jupyter would show.
    """
    if isinstance(shown, str):
        return f"<pre>{html.escape(shown)}</pre>"
    data, metadata = formats(shown)
    if data.get("text/html"):
        return data["text/html"]
    if data.get("image/png"):
        return image(data["image/png"], **metadata.get("image/png", {}))
    return f"<pre>{html.escape(data.get('text/plain', str(shown)))}</pre>"


def formats(shown: object) -> tuple[dict, dict]:
    """What Jupyter would store for this object: data by type, and metadata by type."""
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.getipython import get_ipython
    from matplotlib.figure import Figure

    shell = get_ipython()
    formatter = shell.display_formatter if shell else DisplayFormatter()
    data, metadata = formatter.format(shown, include={"text/html", "image/png", "text/plain"})
    if isinstance(shown, Figure) and "image/png" not in data:  # a shell without matplotlib's hook
        stream = io.BytesIO()
        shown.savefig(stream, format="png")
        data["image/png"] = stream.getvalue()
    return data, metadata


def image(png: bytes | str, *, alt: str = "", width: int | None = None, **_) -> str:
    """An `<img>` that holds its own bytes.

    Args:
        png: the bytes of the file, or their base64 text.
        alt: the alternative text.
        width: width on the screen, in CSS pixels; by default one for each pixel of the file.
    """
    text = png if isinstance(png, str) else base64.b64encode(png).decode()
    size = f" width='{width}'" if width else ""
    source = "data:image/png;base64," + text.replace("\n", "")
    return f"<img src='{source}' alt='{html.escape(alt, quote=True)}'{size}>"


def bars_html(bars: Bars) -> str:
    """A running call's progress: one bar for each label and rank, as an HTML table."""
    rows = []
    for (label, rank), (done, total) in sorted(bars.items()):
        share = 100 if total is None else 100 * done / max(total, 1)
        bar = (
            "<div style='background:#8883;height:.8em;width:16em;margin:0 .5em'>"
            f"<div style='background:{rank_color(rank)};height:.8em;width:{share:.0f}%'>"
            "</div></div>"
        )
        rows.append([f"{printable(label)} rank {rank}", Markup(bar), count(done, total)])
    return table(rows, align=["right", "left", "left"], style="border:none")


def bars_text(bars: Bars) -> str:
    """The same bars as words."""
    return ", ".join(
        f"{printable(label)} rank {rank}: {count(*progress)}".strip()
        for (label, rank), progress in sorted(bars.items())
    )


def count(done: int, total: int | None) -> str:
    return f"{done}" if total is None else f"{done}/{total}"


def printable(label: str) -> str:
    """The label on one line, without what a terminal would obey: line ends, colours, a bell."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(label)
    )
    return shown if len(shown) <= LABEL_SHOWN else shown[: LABEL_SHOWN - 1] + "…"


def curve_figure(name: str, curves: Curves, xlabel: str = "step"):
    """A curve for each rank, as a Picture."""
    from helpers.plots.curve import curves as draw

    series = {f"rank {rank}": (x, y) for rank, (x, y) in sorted(curves.items())}
    thin = {rank: {"ms": 3, "lw": 1.5, "alpha": 0.85} for rank in series}
    key = "inside" if len(series) <= 4 else "right"
    return draw(series, xlabel=xlabel, ylabel=name, styles=thin, key=key, width=5.2, height=2.6)


def curve_output(name: str, curves: Curves) -> tuple[dict, dict]:
    """The figure as Jupyter's display messages carry it: data and metadata, by MIME type."""
    png, metadata = curve_figure(name, curves)._repr_png_()
    data = {"image/png": base64.b64encode(png).decode(), "text/plain": metadata["alt"]}
    return data, {"image/png": metadata}
