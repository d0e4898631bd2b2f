"""The result of `compare`: how a strategy differs from its twin, and what both measured."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helpers.comm.ledger import Ledger
from helpers.measure.memory import Memory
from helpers.training.differences import Difference
from helpers.training.locate import Location

# How far an exact strategy may be from its twin, absolute. Both add the same numbers in different
# orders. So a float64 sum is off by about 1e-16 of its terms. AdamW divides by the size of the
# gradient, and with eps = 1e-8 it amplifies this error to 1e-12 at most. A float32 sum is off by
# 1e-7. Where a gradient is hardly larger, AdamW makes a visible part of a step of that error: the
# tolerance allows a hundredth of a usual learning rate for each of 20 steps.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-4}
# The bound of a dtype without a tolerance: AdamW turns the last bits of bf16 into whole steps.
ROUNDED = 0.5
KINDS = ("parameters", "master copies", "gradients", "optimizer")  # of `Strategy.held`
START = 2**-8  # a lossy strategy may start from the twin's parameters rounded to 8 bits


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one process measured.

    Attributes:
        losses: by step.
        seconds: of the median step.
        memory: of one step, by kind, in bytes.
        ledger: what one step communicated, in bytes.
        held: bytes between steps, by (kind, device), as the strategy reports them; by (kind,
            "measured") of a strategy that reports none.
    """

    losses: tuple[float, ...]
    seconds: float
    memory: Memory
    ledger: Ledger
    held: Mapping[tuple[str, str], int]

    def bytes_of(self, kind: str) -> int:
        """Bytes of one kind: held between steps, or activations within a step."""
        if kind == "activations":
            return self.memory.activations
        return sum(size for (name, _), size in self.held.items() if name == kind)


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """A strategy compared with one process. It is true if they agree, and it draws itself.

    An exact strategy may differ from its twin by rounding: at most by `tolerance`, absolute. A
    lossy strategy states its own bound, relative to how far the twin has moved from its first
    parameters. A dtype without a tolerance also has a relative bound. All bounds are below 1, so a
    strategy that does not train fails every bound.

    Attributes:
        name, dtype: of the strategy.
        lossy: why the strategy cannot agree up to rounding; "" for an exact strategy.
        bound: of a lossy strategy, as `Strategy.bound`.
        twin, ranks: what the single process and each rank measured.
        differences: of every rank and step; the last steps follow a load.
        location: the first departure, if `compare` had to locate it.

    Raises:
        ValueError: a lossy strategy without a bound between 0 and 1.
    """

    name: str
    dtype: torch.dtype
    lossy: str
    bound: float
    twin: Side
    ranks: tuple[Side, ...]
    differences: tuple[Difference, ...]
    location: Location | None = None

    def __post_init__(self):
        if self.lossy and not 0 < self.bound < 1:
            raise ValueError(
                f"{self.name} is lossy ({self.lossy}), and its bound is {self.bound}: set a bound "
                "between 0 and 1, relative to how far the parameters of one process move"
            )

    @property
    def tolerance(self) -> float | None:
        """The largest absolute difference allowed; None where the relative bound counts."""
        return None if self.lossy else TOLERANCE.get(self.dtype)

    @property
    def relative_bound(self) -> float:
        """How far off the parameters may be, relative to how far the twin has moved."""
        return self.bound if self.lossy else ROUNDED

    def worst(self, what: str) -> float:
        """Return the largest difference of "loss", "gradient" or "parameter" over all ranks."""
        values = [getattr(row, what) for row in self.differences]
        return float("nan") if any(v != v for v in values) else max(values)

    def first_wrong(self) -> tuple[str, Difference] | None:
        """Return the first difference that is too large: (kind, difference), or None.

        The kind is "start", "loss", "gradient" or "parameter". The order within a step is from
        cause to effect: the loss is computed before the gradient, and the gradient before the
        update.
        """
        for row in sorted(self.differences, key=lambda row: (row.step, row.rank)):
            for what in ("loss", "gradient", "parameter"):
                if not self.allows(row, what):
                    return ("start" if row.step < 0 else what), row
        return None

    def allows(self, row: Difference, what: str) -> bool:
        """Whether this difference is small enough."""
        if self.tolerance is not None and not getattr(row, what) <= self.tolerance:
            return False
        if what == "parameter":
            return row.relative <= (START if row.step < 0 else self.relative_bound)
        if what == "loss":
            return row.relative_loss <= self.relative_bound
        return row.gradient < float("inf")  # no tensor is missing, and none is NaN

    def __bool__(self):
        return self.first_wrong() is None

    def verdict(self) -> str:
        """Say in one sentence whether the strategy agrees, or where it first does not."""
        wrong = self.first_wrong()
        if wrong is None:
            if self.tolerance is not None:
                kind = f"within {self.tolerance:g}"
            else:
                why = self.lossy or f"it computes in {self.dtype}"
                kind = f"within {self.relative_bound:g} of how far its parameters moved ({why})"
            return f"the same as one process, {kind}, at every step on every rank"
        what, row = wrong
        if what == "start":
            return (
                f"rank {row.rank} does not start from the twin's parameters: "
                f"{row.parameter_name} is off by {row.parameter:.3g}"
            )
        name, value = getattr(row, f"{what}_name", ""), getattr(row, what)
        where = f"step {row.step}{', after a load' if row.loaded else ''}, rank {row.rank}"
        it = f"the {what}{f' of {name}' if name else ''} is off by {value:.3g}"
        if self.tolerance is not None and not value <= self.tolerance:
            return f"{where}: {it}, more than {self.tolerance:g}"
        if what != "parameter":
            return f"{where}: {it}"
        if row.relative >= 0.99 and row.relative < 1.01:
            return f"{where}: the parameters do not change, but the twin's do"
        return (
            f"{where}: {it}; all parameters together by {row.relative:.3g} of how far the twin "
            f"moved, more than {self.relative_bound:g}"
        )

    def table(self) -> list[tuple[str, str, str]]:
        """(what, one process, each rank): memory and bytes of the rank with the most."""
        rows = []
        for kind in (*KINDS, "activations"):
            own, most = self.twin.bytes_of(kind), max(side.bytes_of(kind) for side in self.ranks)
            if own or most or kind != "master copies":
                rows.append((f"{kind} (bytes)", f"{own:,}", f"{most:,}"))
        sent = max(side.ledger.wire for side in self.ranks)
        rows.append(("sent per step (bytes)", "0", f"{sent:,.0f}"))
        slowest = max(side.seconds for side in self.ranks)
        rows.append(("step (ms)", f"{1e3 * self.twin.seconds:.1f}", f"{1e3 * slowest:.1f}"))
        return rows

    def __repr__(self):
        head = f"{self.name} on {len(self.ranks)} ranks: {self.verdict()}"
        worst = ", ".join(
            f"{what} {self.worst(what):.2g}" for what in ("loss", "gradient", "parameter")
        )
        rows = [("", "one process", "a rank"), *self.table()]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        where = [str(self.location)] if self.location else []
        return "\n".join([head, *where, f"largest differences: {worst}", *lines])

    def plot(self):
        """Plot both loss curves, and the differences by step. Returns a Picture."""
        from helpers.plots.agreement import equivalence

        rows = [row for row in self.differences if row.step >= 0 and not row.loaded]
        steps = sorted({row.step for row in rows})
        kinds, line = ("loss", "gradient", "parameter"), self.tolerance
        if line is None:
            kinds, line = ("relative_loss", "relative"), self.relative_bound
        largest = {
            kind: [max(getattr(row, kind) for row in rows if row.step == step) for step in steps]
            for kind in kinds
        }
        return equivalence(self.name, self.twin.losses, self.ranks[0].losses, largest, line)

    def _repr_png_(self):
        return self.plot()._repr_png_()
