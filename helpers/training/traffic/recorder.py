"""What a recorder does with each message of a step: find its layers, its kind and its phase."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from helpers.comm.ledger import Entry
from helpers.parallel.units import Unit, in_backward
from helpers.training.traffic.contents import Fingerprints, Pending
from helpers.training.traffic.diff import Message

FEW = 2  # numbers: a message of at most so many is a loss, a count of targets or a norm
SUMS = ("all_reduce", "reduce_scatter", "reduce")  # never of parameters
COPIES = ("all_gather", "broadcast", "gather", "scatter")  # never of gradients
SILENT = ("recv", "barrier")  # they send nothing


@dataclass
class Seen:
    """A message as the recorder saw it.

    Attributes:
        where: "forward", "backward", or "" between passes.
        passes, turned: how many forwards had begun, and whether the last one's backward had.
        during: the layer that was running.
        content: a copy of its numbers; None once their layers are known.
        itemsize: bytes of a number.
        names: parameter -> numbers of it in the message.
    """

    entry: Entry
    where: str
    passes: int
    turned: bool
    during: str
    content: torch.Tensor | None
    itemsize: int
    kind: str = ""
    names: Mapping[str, float] = field(default_factory=dict)
    sends: int = 1


class Recorder:
    """Collects the messages of a step, and where the rank was when each one started.

    Args:
        found: the layers.
        state: the parameters before the step, by plain name.
        ranks: the number of ranks; each may pad its shard.
    """

    def __init__(self, found: list[Unit], state: Mapping[str, torch.Tensor], ranks: int):
        self.values = Fingerprints(state)
        self.layer_of = {name: unit.name for unit in found for name in unit.parameters}
        self.sizes = {name: value.numel() for name, value in state.items()}
        self.spare = {
            name: (ranks - 1) * (value.numel() // len(value)) if value.ndim else ranks - 1
            for name, value in state.items()
        }
        trained = {
            unit.name: {
                name: min(p.numel() or math.inf, self.sizes[name])  # DeepSpeed frees it
                for name, p in unit.parameters.items()
                if p.requires_grad and name in self.sizes
            }
            for unit in found
        }
        cut = {n for own in trained.values() for n, size in own.items() if size < self.sizes[n]}
        self.pending = Pending(trained, self.spare, cut)
        self.running: list[str] = []  # layers whose forward is running, outer before inner
        self.depth = 0  # of calls of the whole model
        self.passes = 0  # forwards of the whole model that have begun
        self.turned = False  # whether the last forward's backward has begun
        self.last = ""  # the layer whose backward began last
        self.seen: list[Seen] = []

    # what runs

    def model_begins(self, *_):
        if not in_backward():
            if not self.depth:
                self.passes, self.last = self.passes + 1, ""
            self.depth += 1
            self.turned = False

    def model_ends(self, *_):
        if not in_backward():
            self.depth -= 1

    def begins(self, unit: str):
        if not in_backward():
            self.running.append(unit)

    def ends(self, unit: str):
        if not in_backward() and unit in self.running:
            self.running.remove(unit)

    def backward_begins(self, unit: str):
        self.last, self.turned = unit, True
        self.pending.begin(unit)

    # what is sent

    def saw(self, entry: Entry, tensors):
        """The ledger's `watch`."""
        if entry.call in SILENT or not tensors:
            return
        where = "backward" if in_backward() else "forward" if self.depth or self.running else ""
        during = self.last if where == "backward" else (self.running or [""])[-1]
        content = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        one = Seen(entry, where, self.passes, self.turned, during, content, content.itemsize)
        if not self.continues(one):
            self.seen.append(one)
            self.identify(one)

    def continues(self, one: Seen) -> bool:
        """Add a send to the last message, if both are parts of one collective."""
        if one.entry.call != "send" or not self.seen:
            return False
        last = self.seen[-1]
        same = (last.entry, last.where, last.during) == (one.entry, one.where, one.during)
        if not same or last.sends >= one.entry.ranks - 1 or last.kind == "activations":
            return False
        last.sends += 1
        return True

    def identify(self, one: Seen):
        """Find out what a message contains, as far as the values before the step tell."""
        numbers = round(collective(one.entry) / one.itemsize)
        if one.content.numel() <= FEW or not one.content.dtype.is_floating_point:
            one.kind = "other"
        elif names := self.gathered(self.values, one, numbers):
            one.kind, one.names = "parameters", names
        elif one.entry.call in COPIES or self.mirrors(one):
            pass
        elif taken := self.pending.take(numbers):
            one.kind = "gradients"
            one.names = {name: size for own in taken.values() for name, size in own.items()}
        if one.kind:
            one.content = None

    def mirrors(self, one: Seen) -> bool:
        """Whether this layer's forward has sent such a message, too: of activations."""
        sent = [(o.entry, o.during, o.kind) for o in self.seen if o.where == "forward"]
        return one.where == "backward" and (one.entry, one.during, "") in sent

    def gathered(self, values: Fingerprints, one: Seen, numbers: int) -> dict[str, float]:
        """How many numbers of each parameter a gather of this size contains; {} for no gather.

        Parameters with equal values (in bf16, norms of ones) have no fingerprint of their own. If
        the layers that were found have the right size as a whole, or one layer has, they are meant.
        """
        if one.entry.call in SUMS:
            return {}
        hits = values.find(one.content)
        if not hits and values.knows(one.content):
            fits = [
                (sum(own.values()), own)
                for own in self.pending.units.values()
                if 0 <= numbers - sum(own.values()) <= sum(self.spare[name] for name in own)
            ]
            return max(fits, key=lambda pair: pair[0])[1] if fits else {}
        if not hits:
            return {}
        layers = {self.layer_of[name] for name in hits if name in self.layer_of}
        whole = [name for name, layer in self.layer_of.items() if layer in layers]
        for names in (list(hits), whole):
            sizes = {name: self.sizes[name] for name in names}
            if 0 <= numbers - sum(sizes.values()) <= sum(self.spare[name] for name in names):
                return sizes
        return dict(hits)

    # the result

    def messages(self, after: Fingerprints) -> list[Message]:
        """All messages of the step, in order."""
        for one in self.seen:
            if one.content is not None and not one.where:
                numbers = round(collective(one.entry) / one.itemsize)
                names = self.gathered(after, one, numbers)
                if names:
                    one.kind, one.names = "parameters", names
            message = one.entry.call == "send"
            one.kind = one.kind or ("activations" if one.where or message else "other")
        return [self.message(order, one) for order, one in enumerate(self.seen)]

    def message(self, order: int, one: Seen) -> Message:
        entry, whole = one.entry, one.kind in ("parameters", "gradients")
        payload = collective(entry) if whole else entry.payload * one.sends
        return Message(
            order=order,
            call=name_of(one),
            kind=one.kind,
            phase=self.phase(one),
            during=one.during,
            layers=self.by_layer(one, payload),
            payload=payload,
            wire=None if entry.wire is None else entry.wire * one.sends,
            ranks=entry.ranks,
            axes=entry.axes,
        )

    def by_layer(self, one: Seen, payload: float) -> dict[str, float]:
        if one.kind == "other":
            return {}
        if one.kind == "activations":
            return {one.during: float(payload)}
        sums: dict[str, float] = {}
        for name, numbers in one.names.items():
            layer = self.layer_of.get(name, "")
            sums[layer] = sums.get(layer, 0) + numbers
        total = sum(sums.values())
        return {layer: payload * share / total for layer, share in sums.items()}

    def phase(self, one: Seen) -> str:
        """The phase of a message.

        Between two passes, gradients belong to the backward before. What follows the last backward
        belongs to the update, and everything else to a forward.
        """
        if one.where:
            return one.where
        if one.kind == "gradients":
            return "backward"
        return "update" if one.turned and one.passes == self.passes else "forward"


def collective(entry: Entry) -> float:
    """The payload of the collective of which an entry is a part: all ranks' shards."""
    return entry.payload * entry.ranks if entry.call == "send" else entry.payload


def name_of(one: Seen) -> str:
    """The collective that these calls make."""
    call = one.entry.call
    what = {"parameters": "all_gather", "gradients": "reduce_scatter"}.get(one.kind)
    return f"{what} by {call}" if what and call in ("send", "all_to_all") else call
