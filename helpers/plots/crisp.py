"""Turn a figure into a sharp, small PNG: twice the pixels, the same size on the page."""

import io

from helpers.plots.style import PAPER, course_style

BYTES = 55_000  # a committed picture may have 60 kB; the rest is slack for other fonts
PALETTES = (256, 128, 64, 32, 16)


def crisp(figure, **options) -> tuple[bytes, dict[str, int]]:
    """Draw a figure with twice its dots per inch, in few colours.

    A PNG with a palette has a third of the bytes of one in full colour. The number of colours
    falls from 256 to 16 until the picture has at most `BYTES` bytes.

    Args:
        options: those of Matplotlib's `savefig`.

    Returns:
        The PNG, and its `width` and `height` on the page in CSS pixels, as Jupyter's output
        metadata has them.

    Raises:
        ValueError: the figure has bars on a logarithmic axis. Such an axis has no zero, so the
            length of a bar means nothing.
    """
    from PIL import Image

    refuse_bars_on_log_axes(figure)
    stream = io.BytesIO()
    with course_style():
        figure.savefig(stream, format="png", dpi=2 * figure.dpi, facecolor=PAPER, **options)
    image = Image.open(stream).convert("RGB")
    size = {"width": image.width // 2, "height": image.height // 2}
    return small_png(image), size


def small_png(image, limit: int = BYTES) -> bytes:
    """The image as a PNG with the largest palette that keeps it under `limit` bytes.

    If no palette is small enough, the result has the smallest one and is larger than `limit`.
    """
    from PIL import Image

    for colors in PALETTES:
        stream = io.BytesIO()
        few = image.quantize(colors, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(stream, format="png", optimize=True)
        if stream.tell() <= limit:
            break
    return stream.getvalue()


def refuse_bars_on_log_axes(figure):
    from matplotlib.container import BarContainer

    for axes in figure.axes:
        for bars in axes.containers:
            if isinstance(bars, BarContainer):
                upright = bars.orientation != "horizontal"
                if (axes.get_yscale() if upright else axes.get_xscale()) == "log":
                    raise ValueError(
                        "bars on a logarithmic axis: such an axis has no zero, so a bar's length "
                        "means nothing. Draw points: plots.bars(values, log=True)."
                    )
