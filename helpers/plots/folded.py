"""Fold a part of a notebook's output away, until the reader opens it."""

import base64
import html
import io


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
