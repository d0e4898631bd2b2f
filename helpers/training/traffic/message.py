"""One message of a training step, as plain data."""

from collections.abc import Mapping
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
