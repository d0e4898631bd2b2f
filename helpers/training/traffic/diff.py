"""Align the messages of several strategies, layer by layer: pure functions of plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.plots.table import table
from helpers.training.traffic.message import KINDS, PHASES, Message

CONTENT = ("parameters", "gradients", "activations")  # what has a layer


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one strategy sends of one layer in one phase.

    Attributes:
        sent: bytes that this rank sends.
        payload: bytes of the collectives' buffers.
        messages: how many messages contain a part of the layer.
        during: the layers that were running when they started, in order; "" for none.
    """

    sent: float = 0.0
    payload: float = 0.0
    messages: int = 0
    during: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One layer in one phase, of all strategies.

    Attributes:
        phase, kind, layer: what the row is about.
        cells: strategy -> what it sends.
    """

    phase: str
    kind: str
    layer: str
    cells: Mapping[str, Cell]

    def agrees(self, near: float) -> bool:
        """Whether all strategies send the same number of bytes, up to this share of it."""
        sent = [cell.sent for cell in self.cells.values()]
        return max(sent) - min(sent) <= near * max(sent)


@dataclass(frozen=True, kw_only=True, repr=False)
class Diff:
    """The messages of several strategies, aligned. It draws itself.

    Attributes:
        streams: strategy -> its messages, in order.
        layers: in the order of the forward.
        rows: in the order of a step; layers in reverse in the backward.
    """

    streams: Mapping[str, Sequence[Message]]
    layers: tuple[str, ...]
    rows: tuple[Row, ...]

    def total(self, strategy: str, phase: str = "", kind: str = "") -> float:
        """Bytes that this rank sends in a step, by one strategy."""
        return sum(
            message.payload if message.wire is None else message.wire
            for message in self.streams[strategy]
            if phase in ("", message.phase) and kind in ("", message.kind)
        )

    def frame(self):
        """Return the rows as a DataFrame: phase, kind, layer, and the bytes of each strategy."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"phase": row.phase, "kind": row.kind, "layer": row.layer}
                | {name: round(cell.sent) for name, cell in row.cells.items()}
                for row in self.rows
            ]
        )

    def summary(self, near: float = 0.05) -> list[str]:
        """Sentences: the totals, where the bytes differ, and where the time differs.

        Args:
            near: bytes that differ by less than this share count as equal; padding for example.
        """
        return [*self.totals(), *self.bytes_apart(near), *self.times_apart()]

    def totals(self) -> list[str]:
        """One sentence for each strategy: its bytes and messages in a step."""
        found = []
        for name, stream in self.streams.items():
            parts = ", ".join(
                f"{self.total(name, kind=kind):,.0f} of {kind}"
                for kind in KINDS
                if any(message.kind == kind for message in stream)
            )
            found.append(
                f"{name} sends {self.total(name):,.0f} bytes in {len(stream)} messages: {parts}."
            )
        return found

    def bytes_apart(self, near: float = 0.05) -> list[str]:
        """Where strategies send different numbers of bytes; neighbours share a sentence."""
        found: dict[tuple, list[str]] = {}
        for row in self.rows:
            if not row.agrees(near):
                sent = tuple(f"{name} {said(row, cell)}" for name, cell in row.cells.items())
                found.setdefault((row.phase, row.kind, sent), []).append(row.layer)
        return [
            f"{phase.capitalize()}, {kind} of {', '.join(layers)}: {'; '.join(sent)}."
            for (phase, kind, sent), layers in found.items()
        ]

    def times_apart(self) -> list[str]:
        """Where strategies send the same content at different times."""
        found: dict[tuple, list[str]] = {}
        for row in self.rows:
            moments = {name: self.moment(row, cell) for name, cell in row.cells.items()}
            if len({moment for moment in moments.values() if moment}) > 1:
                told = tuple(f"{name} {moment}" for name, moment in moments.items() if moment)
                found.setdefault((row.phase, row.kind, told), []).append(row.layer)
        return [
            f"{phase.capitalize()}, {kind} of {', '.join(layers)}: {'; '.join(told)}."
            for (phase, kind, told), layers in found.items()
        ]

    def moment(self, row: Row, cell: Cell) -> str:
        """When a strategy sends, relative to the layer's own forward or backward."""
        if not cell.messages or row.phase == "update":
            return ""
        order = self.layers if row.phase == "forward" else self.layers[::-1]
        during = cell.during[0]
        if not during or row.layer not in order or during not in order:
            return "before the first layer" if row.kind == "parameters" else "after the last layer"
        ahead = order.index(row.layer) - order.index(during)
        if ahead == 0:
            return "while the layer itself runs"
        side = "before" if ahead > 0 else "after"
        return f"{abs(ahead)} layer{'s' * (abs(ahead) > 1)} {side} it"

    def __repr__(self):
        return "\n".join(self.summary())

    def _repr_html_(self):
        names = list(self.streams)
        rows = [
            [row.phase, row.kind, row.layer, *(f"{row.cells[n].sent:,.0f}" for n in names)]
            for row in self.rows
        ]
        sums = [f"{self.total(name):,.0f}" for name in names]
        head = ["phase", "bytes of", "layer", *names]
        return table([*rows, ["step", "all", "", *sums]], head=head)

    def plot(self, **options):
        """Draw the strategies side by side. Returns a Picture. Options: see `traffic_diff`."""
        from helpers.plots.traffic_diff import traffic_diff

        return traffic_diff(self.streams, self.layers, **options)


def align(streams: Mapping[str, Sequence[Message]], layers: Sequence[str]) -> Diff:
    """Align the messages of one rank under several strategies, by phase, kind and layer.

    Args:
        streams: strategy -> its messages, from `record`, of the same model and the same rank.
        layers: of the model, in the order of the forward: `layers_of(config)`.

    Raises:
        ValueError: there are no streams, or a message belongs to a layer that is not listed.
    """
    if not streams:
        raise ValueError("no strategy to align: pass at least one stream of messages")
    cells: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for name, stream in streams.items():
        for message in stream:
            for layer, sent in message.sent().items():
                if layer not in (*layers, ""):
                    raise ValueError(
                        f"{name} sends {message.kind} of {layer!r}, which is none of the layers "
                        f"{', '.join(layers)}: align strategies of the same model"
                    )
                own = cells.setdefault((message.phase, message.kind, layer), {})
                old = own.get(name, Cell())
                own[name] = Cell(
                    sent=old.sent + sent,
                    payload=old.payload + message.layers[layer],
                    messages=old.messages + 1,
                    during=(*old.during, message.during),
                )
    places = {layer: place for place, layer in enumerate(layers)}

    def order(key):
        phase, kind, layer = key
        place = places.get(layer, -1)
        turn = -1 if phase == "backward" else 1
        return PHASES.index(phase), KINDS.index(kind), turn * place

    rows = [
        Row(
            phase=phase,
            kind=kind,
            layer=layer,
            cells={name: cells[phase, kind, layer].get(name, Cell()) for name in streams},
        )
        for phase, kind, layer in sorted(cells, key=order)
    ]
    return Diff(streams=dict(streams), layers=tuple(layers), rows=tuple(rows))


def said(row: Row, cell: Cell) -> str:
    """The bytes of a cell in words."""
    if not cell.messages:
        return "sends none"
    times = "" if cell.messages == 1 else f" in {cell.messages} messages"
    return f"sends {cell.sent:,.0f} bytes{times}"
