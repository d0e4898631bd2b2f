"""Find the gradients that a message contains, by the order of the backward and by sizes.

A library sends a gradient after its layer's backward has begun, and in that order: layer by layer,
or in buckets. So a message contains a run of the layers whose gradients are not sent yet. Their
sizes tell which run.
"""

from collections.abc import Iterator, Mapping


class Pending:
    """The parameters whose gradients a rank has, but has not sent.

    Args:
        units: layer -> its trained parameters -> numbers.
        padding: parameter -> the most numbers by which a library may pad it.
    """

    def __init__(self, units: Mapping[str, Mapping[str, int]], padding: Mapping[str, int]):
        self.units, self.padding = units, padding
        self.waiting: dict[str, dict[str, int]] = {}  # layer -> parameters, in the backward's order

    def begin(self, unit: str):
        """The backward of this layer begins. Its last parameter gets its gradient first."""
        own = self.waiting.setdefault(unit, {})
        for name, numbers in reversed(self.units[unit].items()):
            own.setdefault(name, numbers)

    def take(self, numbers: int) -> dict[str, dict[str, int]]:
        """Remove the gradients of a message of this size: layer -> parameter -> numbers.

        Returns:
            {} if no run of layers or parameters has this size.
        """
        best: tuple | None = None
        for run, whole in self.runs():
            excess = numbers - sum(self.waiting[unit][name] for unit, name in run)
            if not 0 <= excess <= sum(self.padding[name] for _, name in run):
                continue
            rank = excess > 0 and not whole, excess  # a bucket within a layer has no padding
            if best is None or rank < best[0]:
                best = rank, run
        if best is None:
            return {}
        taken: dict[str, dict[str, int]] = {}
        for unit, name in best[1]:
            taken.setdefault(unit, {})[name] = self.waiting[unit].pop(name)
        for unit in [unit for unit, own in self.waiting.items() if not own]:
            del self.waiting[unit]
        return taken

    def runs(self) -> Iterator[tuple[list[tuple[str, str]], bool]]:
        """Yield what a message may contain: whole layers, then the first parameters.

        Each is a list of (layer, parameter), and whether it consists of whole layers.
        """
        layers = [[(unit, name) for name in own] for unit, own in self.waiting.items() if own]
        for length in range(1, len(layers) + 1):
            for first in range(len(layers) - length + 1):
                yield [pair for layer in layers[first : first + length] for pair in layer], True
        flat = [pair for layer in layers for pair in layer]
        for last in range(1, len(flat) + 1):
            yield flat[:last], False
