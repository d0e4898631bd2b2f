"""Messages of a step as plain data, and those of several strategies aligned, layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PHASES = ("forward", "backward", "update")
KINDS = ("parameters", "gradients", "activations", "other")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One collective, or the sends that together are one collective.

    Attributes:
        order: its place among the messages of the step, from 0.
        call: "all_gather", "reduce_scatter", "all_reduce", …; "all_gather by send" if the strategy
            sends to each rank by itself.
        kind: one of KINDS: what the message contains. "other" is a loss, a count of targets, a
            norm, a buffer.
        phase: one of PHASES: what the rank was doing when the message started.
        during: the layer whose forward or backward was running; "" for none.
        layers: layer -> its share of the payload, in bytes; empty for "other".
        payload: bytes of the collective's whole buffer, as in the ledger.
        wire: bytes that this rank sends, as in the ledger; None if no formula is known.
        ranks: the size of the group.
        axes: of the mesh, as in the ledger.
    """

    order: int
    call: str
    kind: str
    phase: str
    during: str
    layers: Mapping[str, float] = field(default_factory=dict)
    payload: float
    wire: float | None
    ranks: int
    axes: str = ""

    def sent(self) -> dict[str, float]:
        """Bytes that this rank sends, by layer. An unknown wire counts as the payload."""
        total = sum(self.layers.values())
        wire = self.payload if self.wire is None else self.wire
        return {layer: wire * share / total for layer, share in self.layers.items()}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one strategy sends of one layer in one phase.

    Attributes:
        sent: bytes that this rank sends.
        messages: how many messages contain a part of the layer.
        during: the layers that were running when they started, in order; "" for none.
    """

    sent: float = 0.0
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
