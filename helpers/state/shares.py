"""Show which part of one matrix each rank holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.plots.page import table
from helpers.state.part import Part
from helpers.state.pieces import Box, pieces


@dataclass(frozen=True, repr=False)
class Shares:
    """Each rank's boxes of one plain tensor. It shows itself as a table, and draws itself.

    Attributes:
        name, shape: of the plain tensor.
        boxes: for each rank the boxes that it holds, a (start, stop) for each dim; none if the
            tensor is not on this rank.
    """

    name: str
    shape: tuple[int, ...]
    boxes: tuple[tuple[Box, ...], ...]

    def rows(self) -> list[tuple[int, str]]:
        """(rank, its boxes as text): "0:12, :" are rows 0 to 11 with all columns."""
        return [
            (rank, " and ".join(map(self.written, own)) or "nothing")
            for rank, own in enumerate(self.boxes)
        ]

    def written(self, box: Box) -> str:
        dims = (
            ":" if ends == (0, size) else f"{ends[0]}:{ends[1]}"
            for ends, size in zip(box, self.shape, strict=True)
        )
        return ", ".join(dims) or "all"  # a number has no dims

    def __repr__(self):
        lines = [f"rank {rank}  {text}" for rank, text in self.rows()]
        return "\n".join([f"{self.name} {self.shape}", *lines])

    def _repr_html_(self):
        return table(self.rows(), head=("rank", f"{self.name} {self.shape}"), align=("right",))

    def plot(self, **options):
        """Draw the tensor once for each rank, with the rank's boxes filled. Returns a Picture."""
        from helpers.plots.holdings import shares as draw

        return draw(self.shape, self.boxes, title=f"{self.name} {self.shape}", **options)


def shares(ranks: Sequence[Mapping[str, Part]], name: str) -> Shares:
    """Find every rank's boxes of the plain tensor `name`.

    Args:
        ranks: for each rank its parts by key: `trainer.parts.ranks`.

    Raises:
        ValueError: no rank holds a tensor of this name.
    """
    held = [[part for part in parts.values() if part.name == name] for parts in ranks]
    shape = next((part.shape for own in held for part in own), None)
    if shape is None:
        names = sorted({part.name for parts in ranks for part in parts.values()})
        raise ValueError(f"no rank holds {name!r}; there are {', '.join(names)}")
    boxes = tuple(tuple(piece.box for part in own for piece in pieces(part)) for own in held)
    return Shares(name, shape, boxes)
