"""Which tokens of a sequence each rank has, as data; and what causal attention then costs it.

N  ranks        T  tokens of a sequence        a part  one rank's tokens: ranges of their places

    contiguous   0 0 0 0 1 1 1 1    the last rank sees everything, and the first one itself
    zigzag       0 0 1 1 1 1 0 0    an early piece and a late piece: all ranks see as much
    striped      0 1 0 1 0 1 0 1    each rank sees half of each other rank's tokens

On a ring, all ranks compute one step together: a rank's queries on one rank's keys. So a step takes
as long as on its slowest rank. With T/N = t tokens for each rank, T large, in units of t² scores:

                 rank r computes          a ring of N steps takes     efficiency
    contiguous   r + 1/2                  N - 1/2                     N / (2 N - 1)
    zigzag       N/2                      N/2                         1
    striped      N/2 (± r/t)              N/2 (1 + 1/t)               1 - 1/t

Sources: Liu et al. 2023, arXiv:2310.01889, for the ring; Brandon et al. 2023, "Striped Attention",
arXiv:2311.09431; github.com/zhuzilin/ring-flash-attention, for zigzag and measured efficiencies.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

Part = tuple[range, ...]
Order = Callable[[int, int], list[Part]]


def contiguous(tokens: int, ranks: int) -> list[Part]:
    """Give each rank neighbouring tokens: the part of each rank. The first may have one more."""
    return [(piece,) for piece in pieces(tokens, ranks)]


def zigzag(tokens: int, ranks: int) -> list[Part]:
    """Cut into 2 N pieces, and give rank r the pieces r and 2 N - 1 - r."""
    cut = pieces(tokens, 2 * ranks)
    return [(cut[rank], cut[-1 - rank]) for rank in range(ranks)]


def striped(tokens: int, ranks: int) -> list[Part]:
    """Deal the tokens out like cards: rank r gets the places r, r + N, r + 2 N, …."""
    return [(range(rank, tokens, ranks),) for rank in range(ranks)]


def pieces(tokens: int, count: int) -> list[range]:
    """Cut the places 0 … T-1 into neighbouring pieces, as even as possible, larger ones first.

    Raises:
        ValueError: there is no piece.
    """
    if count < 1:
        raise ValueError(f"a sequence cannot be cut into {count} pieces: name at least one rank")
    size, rest = divmod(tokens, count)
    starts = [size * k + min(k, rest) for k in range(count + 1)]
    return [range(*pair) for pair in pairwise(starts)]


def length(part: Part) -> int:
    """The number of tokens in a part."""
    return sum(map(len, part))


def scores(queries: Part, keys: Part) -> int:
    """Count the scores that causal attention of these queries to these keys needs.

    In ranges of the step s, key k_j is seen by query q_i if j ≤ i + (q_0 - k_0) // s: a triangle,
    cut on three sides.
    """
    total = 0
    for rows in queries:
        for columns in keys:
            if rows.step != columns.step:
                raise ValueError(f"{rows} and {columns} have different steps")
            before = (rows.start - columns.start) // rows.step
            after, width = before + len(rows), len(columns)
            total += triangle(after) - triangle(before)
            total -= triangle(after - width) - triangle(before - width)
    return total


def triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0


def ring_scores(parts: Sequence[Part]) -> list[list[int]]:
    """Count the scores of each rank in each step of a ring: N rows of N.

    In step i, rank r has the keys of rank r - i.
    """
    return [
        [scores(part, parts[rank - step]) for step in range(len(parts))]
        for rank, part in enumerate(parts)
    ]


def ring_efficiency(parts: Sequence[Part]) -> float:
    """Mean scores of a rank, over those of the slowest rank in each step, added up."""
    found = ring_scores(parts)
    slowest = sum(map(max, zip(*found, strict=True)))
    return sum(map(sum, found)) / len(parts) / slowest if slowest else 1.0
