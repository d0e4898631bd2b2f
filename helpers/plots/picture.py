"""A matplotlib figure that draws itself in a notebook, without pyplot and its list of figures."""

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A Figure that Jupyter shows as it stands, whether or not pyplot has been used."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png")
        return stream.getvalue()
