"""What a strategy and its single-process twin differ in, and what each of them took."""

from dataclasses import dataclass

import torch

from helpers.comm.ledger import Ledger
from helpers.measure.memory import Memory

# The most that an exact strategy may differ from its twin, absolute. Both add the same numbers, in
# another order. A float64 sum is then off by some 1e-16 of its terms, and AdamW, which divides by
# the gradient's own size, cannot make more than 1e-12 of it while eps is 1e-8. In float32 the sums
# are off by 1e-7; where a gradient is hardly larger than that, AdamW turns it into a visible part
# of a step, so the parameters get a hundredth of a usual learning rate for each of 20 steps.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-4}
LOSSY = 0.1  # a sane bound for what is lossy on purpose; tests state tighter ones


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One rank against the twin, after one step (-1: before the first).

    Attributes:
        loss, gradient, parameter: the largest absolute difference of any element.
        gradient_name, parameter_name: where it is.
    """

    rank: int
    step: int
    loss: float
    gradient: float
    gradient_name: str
    parameter: float
    parameter_name: str


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one process took.

    Attributes:
        losses: by step.
        seconds: the median step.
        memory: of one step, by kind, in bytes.
        ledger: what one step communicated, in bytes.
    """

    losses: tuple[float, ...]
    seconds: float
    memory: Memory
    ledger: Ledger


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """A strategy held against one process. Draws itself; true when they agree.

    Attributes:
        name, dtype: of what was compared.
        lossy: why it cannot agree to rounding; "" if it is to.
        twin, ranks: what the process and each of the ranks took.
        differences: of every rank and step.
    """

    name: str
    dtype: torch.dtype
    lossy: str
    twin: Side
    ranks: tuple[Side, ...]
    differences: tuple[Difference, ...]

    @property
    def tolerance(self) -> float:
        """The most that each difference may be, absolute."""
        return LOSSY if self.lossy else TOLERANCE.get(self.dtype, LOSSY)

    def worst(self, what: str) -> float:
        """The largest difference of "loss", "gradient" or "parameter", over ranks and steps."""
        values = [getattr(row, what) for row in self.differences]
        return float("nan") if any(v != v for v in values) else max(values)

    def first_wrong(self) -> tuple[str, Difference] | None:
        """Where the two part: ("start", "loss", "gradient" or "parameter", that rank and step).

        Of several wrong things at one step the cause comes first: the loss is computed before the
        gradient, and the gradient before the update.
        """
        for row in sorted(self.differences, key=lambda row: (row.step, row.rank)):
            for what in ("loss", "gradient", "parameter"):
                if not getattr(row, what) <= self.tolerance:
                    return ("start" if row.step < 0 else what), row
        return None

    def __bool__(self):
        return self.first_wrong() is None

    def verdict(self) -> str:
        """One sentence."""
        wrong = self.first_wrong()
        if wrong is None:
            kind = f"within {self.tolerance:g}" + (f" ({self.lossy})" if self.lossy else "")
            return f"the same as one process, {kind}, at every step on every rank"
        what, row = wrong
        if what == "start":
            return (
                f"rank {row.rank} does not start from the twin's parameters: "
                f"{row.parameter_name} is off by {row.parameter:.3g}"
            )
        name = getattr(row, f"{what}_name", "")
        return (
            f"step {row.step}, rank {row.rank}: the {what}{f' of {name}' if name else ''} "
            f"is off by {getattr(row, what):.3g}, more than {self.tolerance:g}"
        )

    def table(self) -> list[tuple[str, str, str]]:
        """(what, one process, each rank): memory and bytes of the rank that has most."""
        rows = []
        for kind in ("parameters", "gradients", "optimizer", "activations"):
            most = max(getattr(side.memory, kind) for side in self.ranks)
            rows.append((f"{kind} (bytes)", f"{getattr(self.twin.memory, kind):,}", f"{most:,}"))
        rows.append(("sent a step (bytes)", "0", f"{max(s.ledger.wire for s in self.ranks):,.0f}"))
        slowest = max(side.seconds for side in self.ranks)
        rows.append(("a step (ms)", f"{1e3 * self.twin.seconds:.1f}", f"{1e3 * slowest:.1f}"))
        return rows

    def __repr__(self):
        head = f"{self.name} on {len(self.ranks)} ranks: {self.verdict()}"
        worst = ", ".join(
            f"{what} {self.worst(what):.2g}" for what in ("loss", "gradient", "parameter")
        )
        rows = [("", "one process", "a rank"), *self.table()]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        return "\n".join([head, f"largest differences: {worst}", *lines])

    def plot(self):
        """The loss curves over each other, and the differences by step. Returns a Picture."""
        from helpers.plots.equivalence import equivalence

        steps = sorted({row.step for row in self.differences if row.step >= 0})
        largest = {
            what: [
                max(getattr(row, what) for row in self.differences if row.step == step)
                for step in steps
            ]
            for what in ("loss", "gradient", "parameter")
        }
        return equivalence(
            self.name, self.twin.losses, self.ranks[0].losses, largest, self.tolerance
        )

    def _repr_png_(self):
        return self.plot()._repr_png_()
