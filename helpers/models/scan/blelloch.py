"""The linear recurrence as a tree: a scan that parallel processors could finish in log2 L steps.

B  sequences        L  length        …  any other dims: every number is a recurrence of its own

**Up-sweep**: neighbours are combined in pairs, then neighbouring pairs, and so on up to the root.
**Down-sweep**: the root gets the state before the first input. Every node hands its state to its
left child. Its right child gets that state after the left child's steps.

    up      (0 1)   (2 3)   (4 5)   (6 7)        L - 1 combinations in all
            (0 1 2 3)       (4 5 6 7)
            (0 1 2 3 4 5 6 7)
    down    before 0: h0        before 4: h0 after 0 … 3      … L - 1 applications in all

Work is 2 (L - 1), depth 2 ⌈log2 L⌉. A loop has work and depth L. One core does all the work anyway,
and each level goes through memory again. So the tree loses on a CPU.

Source: Blelloch 1990, "Prefix Sums and Their Applications", CMU-CS-90-190, section 1.2 (the two
sweeps) and 1.4.1 (recurrences).
"""

from dataclasses import dataclass

import torch

from helpers.models.scan.recurrence import apply, combine, scan_by

Span = tuple[int, int]  # inputs from the first number to the second, without the second


@dataclass(frozen=True)
class Step:
    """One step of the tree: all its operations could run at the same time.

    Attributes:
        sweep: "up" or "down".
        level: of the children, from 0 for the inputs themselves.
        pairs: (left child, right child) of each operation, as spans of inputs. An up-step combines
            both; a down-step applies the left child to the state before both.
    """

    sweep: str
    level: int
    pairs: tuple[tuple[Span, Span], ...]


def steps(length: int) -> list[Step]:
    """List the steps of a scan of that many inputs, in order. A node without neighbour waits."""
    level, up = [(i, i + 1) for i in range(length)], []
    while len(level) > 1:
        pairs = tuple(zip(level[0::2], level[1::2], strict=False))
        up.append(Step("up", len(up), pairs))
        rest = level[len(level) // 2 * 2 :]
        level = [(left[0], right[1]) for left, right in pairs] + rest
    return up + [Step("down", step.level, step.pairs) for step in reversed(up)]


def work(length: int) -> int:
    """Count the operations of a scan: combinations and applications."""
    return sum(len(step.pairs) for step in steps(length))


def depth(length: int) -> int:
    """Count the steps that must wait for one another."""
    return len(steps(length))


def scan(
    a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute h_t = a_t h_(t-1) + b_t for all t, as a tree. See `recurrence.scan`."""
    return scan_by(states, a, b, h0)


def states(a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor) -> torch.Tensor:
    """Sweep up, then down: all states (B, L, …) from a, b (B, L, …) and h0 (B, …)."""
    levels, nodes = [], (a, b)
    while nodes[0].shape[1] > 1:
        left, right, rest = split(nodes)
        levels.append(left)
        nodes = tuple(map(torch.cat, zip(combine(left, right), rest, strict=True), (1, 1)))
    before = h0.unsqueeze(1)  # of the root
    last = apply(nodes, before)
    for left in reversed(levels):
        pairs = left[0].shape[1]
        after = apply(left, before[:, :pairs])
        both = torch.stack((before[:, :pairs], after), 2).flatten(1, 2)
        before = torch.cat((both, before[:, pairs:]), 1)
    return torch.cat((before[:, 1:], last), 1)


def split(nodes):
    """Split a level into its left children, its right children, and a last one without pair."""
    pairs = nodes[0].shape[1] // 2
    left = tuple(n[:, 0 : 2 * pairs : 2] for n in nodes)
    right = tuple(n[:, 1 : 2 * pairs : 2] for n in nodes)
    return left, right, tuple(n[:, 2 * pairs :] for n in nodes)
