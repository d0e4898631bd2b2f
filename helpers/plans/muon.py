"""Muon beside AdamW: which matrices, FLOPs, state, messages, and the rank of each matrix, as data.

m, n  rows and columns of a matrix, m <= n       P  parameters of the model       N  ranks
e     bytes of a number                          S  numbers of the largest rank's matrices

                        AdamW                    Muon
    state               2 numbers a parameter    1 in hidden matrices, 2 elsewhere
    matrix products     none                     5 (4 m^2 n + 2 m^3) FLOPs a matrix
    data parallel       2 P e (N-1)/N bytes      and N S e (N-1)/N: the updated matrices
    ZeRO 1              2 P e (N-1)/N            2 N S e (N-1)/N for matrices: only padding is more

Sources: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
https://kellerjordan.github.io/posts/muon/. Liu et al. 2025, "Muon is Scalable for LLM Training",
arXiv:2502.16982, section 2.3 (distributed, over ZeRO 1).
"""

import math
from collections.abc import Mapping, Sequence

from helpers.plans.messages import Message
from helpers.plans.zero_traffic import zero_messages

STEPS = 5  # of Newton-Schulz
ENDS = ("embedding", "positions", "head")  # matrices of the ends of a model: AdamW's
Shapes = Mapping[str, tuple[int, ...]]


def hidden_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether Muon updates a parameter: a matrix between the embedding and the head.

    A state space model's decays (A_log) are no linear map, and its convolutions no matrix.
    """
    return len(shape) == 2 and name.split(".")[0] not in ENDS and not name.endswith("A_log")


def newton_schulz_flops(shape: Sequence[int], steps: int = STEPS) -> int:
    """FLOPs of the matrix products of one orthogonalisation; a multiply-add is 2.

    Jordan et al. bound them by a share of the training step's: steps m / B for B tokens.
    """
    m, n = sorted(shape)
    return steps * (2 * m * m * n + 2 * m**3 + 2 * m * m * n)


def state_numbers(shapes: Shapes, muon: bool = True) -> int:
    """Numbers of an optimizer's moments, without step counts."""
    return sum(math.prod(s) * (1 if muon and hidden_matrix(n, s) else 2) for n, s in shapes.items())


def share_out(shapes: Shapes, ranks: int, loads: list[float]) -> dict[str, int]:
    """Choose a rank for each tensor, whole: the dearest first, to the rank with the least to do.

    It is the greedy rule of Graham 1969, at most 4/3 of the best. What costs nothing (a vector)
    fills the rank with the fewest numbers.

    Args:
        loads: FLOPs of each rank so far; this adds to it, so that several calls balance together.
    """
    numbers, found = [0] * ranks, {}
    cost = {
        name: newton_schulz_flops(shape) if hidden_matrix(name, shape) else 0
        for name, shape in shapes.items()
    }
    for name in sorted(shapes, key=lambda name: (-cost[name], -math.prod(shapes[name]), name)):
        key = lambda r: (loads[r] if cost[name] else 0, numbers[r], r)  # noqa: B023, E731
        rank = found[name] = min(range(ranks), key=key)
        loads[rank] += cost[name]
        numbers[rank] += math.prod(shapes[name])
    return found


def section(shapes: Shapes, rank_of: Mapping[str, int]) -> int:
    """S: numbers of the rank with the most. All ranks' sections of a row have this size."""
    numbers: dict[int, int] = {}
    for name, rank in rank_of.items():
        numbers[rank] = numbers.get(rank, 0) + math.prod(shapes[name])
    return max(numbers.values())


def muon_messages(
    units: Sequence[Shapes], ranks: int, stage: int, *, number_bytes: float = 4, axis: str = "dp"
) -> list[Message]:
    """The messages of a step with Muon: gradients and updated parameters.

    Args:
        units: the trained parameters of each unit of the model, by name.
        stage: 0, data parallel: all matrices are sent in one row; or 1, ZeRO: a row for each unit.

    Raises:
        ValueError: another stage.
    """
    if stage not in (0, 1):
        raise ValueError(f"Muon needs whole matrices: its stage is 0 or 1, not {stage!r}")
    sizes = {"parameter_bytes": number_bytes, "gradient_bytes": number_bytes, "axis": axis}
    loads = [0.0] * ranks
    if stage == 0:
        every = {name: shape for unit in units for name, shape in unit.items()}
        matrices = {name: shape for name, shape in every.items() if hidden_matrix(name, shape)}
        row = ranks * section(matrices, share_out(matrices, ranks, loads)) * number_bytes
        sent = Message(axis=axis, call="all_gather", payload=row, ranks=ranks, what="parameters")
        return [*zero_messages([sum(map(math.prod, every.values()))], ranks, 0, **sizes), sent]
    rows = []
    for unit in units:
        size = -(-sum(map(math.prod, unit.values())) // ranks)
        if any(hidden_matrix(*item) for item in unit.items()):
            size = section(unit, share_out(unit, ranks, loads))
        rows.append(ranks * size)
    return zero_messages(rows, ranks, 1, **sizes)
