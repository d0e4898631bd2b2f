"""Which tokens of a sequence each rank has, as data; and what causal attention then costs it.

N  ranks        T  tokens of a sequence        a part  one rank's tokens: ranges of their places

    contiguous   0 0 0 0 1 1 1 1    the last rank sees everything, and the first one itself
    zigzag       0 0 1 1 1 1 0 0    an early piece and a late piece: all ranks see as much
    striped      0 1 0 1 0 1 0 1    each rank sees half of each other rank's tokens

A sequence may pack several documents, which do not see each other. Zigzag cuts each of them, so a
rank has n / N tokens and n² / 2 N scores of a document of n tokens, whatever the others are:

    zigzag       0 1 1 0 0 1 1 0    two documents of 4 tokens

Contiguous parts of packed sequences differ as the documents do: a rank whose t tokens are the last
of one document computes up to N - 1/2 times t² scores, and t² / 2 m with m documents of its own.

On a ring, all ranks compute one step together: a rank's queries on one rank's keys. So a step takes
as long as on its slowest rank. With T/N = t tokens for each rank, T large, in units of t² scores:

                 rank r computes          a ring of N steps takes     efficiency
    contiguous   r + 1/2                  N - 1/2                     N / (2 N - 1)
    zigzag       N/2                      N/2                         1
    striped      N/2 (± r/t)              N/2 (1 + 1/t)               1 - 1/t

Sources: Liu et al. 2023, arXiv:2310.01889, for the ring; Brandon et al. 2023, "Striped Attention",
arXiv:2311.09431; github.com/zhuzilin/ring-flash-attention, for zigzag and measured efficiencies.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

Part = tuple[range, ...]
Documents = Sequence[int]  # the lengths of a packed sequence's documents, in their order
Order = Callable[[int | Documents, int], list[Part]]
Span = tuple[int, range]  # a document's number, and places in it


def contiguous(tokens: int | Documents, ranks: int) -> list[Part]:
    """Give each rank neighbouring tokens: the part of each rank. The first may have one more."""
    return [(piece,) for piece in pieces(sum(lengths(tokens)), ranks)]


def zigzag(tokens: int | Documents, ranks: int) -> list[Part]:
    """Cut each document into 2 N pieces, and give rank r the pieces r and 2 N - 1 - r.

    Tokens that are left over go to the ranks in turn, from document to document. So with any
    documents, the first ranks have one token more, or all have as many; and their scores differ by
    less than 2 for each token of the sequence.
    """
    pieces(0, ranks)  # it checks
    parts: list[list[range]] = [[] for _ in range(ranks)]
    start = turn = 0
    for count in lengths(tokens):
        size, rest = divmod(count, 2 * ranks)
        sizes = [size] * (2 * ranks)
        for extra in range(rest):
            rank = (turn + extra) % ranks
            sizes[rank if extra < ranks else -1 - rank] += 1
        cut = [range(*ends) for ends in pairwise(accumulate(sizes, initial=start))]
        for rank, part in enumerate(parts):
            part += [piece for piece in (cut[rank], cut[-1 - rank]) if piece]
        start, turn = start + count, turn + rest
    return [tuple(part) for part in parts]


def striped(tokens: int | Documents, ranks: int) -> list[Part]:
    """Deal the tokens out like cards: rank r gets the places r, r + N, r + 2 N, …."""
    return [(range(rank, sum(lengths(tokens)), ranks),) for rank in range(ranks)]


def lengths(tokens: int | Documents) -> Documents:
    """The lengths of the documents; a number of tokens is one document."""
    return (tokens,) if isinstance(tokens, int) else tokens


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


def spans(part: Part, documents: Documents = ()) -> list[Span]:
    """Cut a part's ranges at the ends of documents. Places behind the last one are one more."""
    ends, found = list(accumulate(documents)), []
    for places in part:
        while places:
            document = bisect(ends, places[0])
            end = min([places.stop, *ends[document : document + 1]])
            here = range(places.start, end, places.step)
            found.append((document, here))
            places = places[len(here) :]
    return found


def scores(queries: Part, keys: Part, documents: Documents = ()) -> int:
    """Count the scores that causal attention of these queries to these keys needs.

    In ranges of the step s, key k_j is seen by query q_i if j ≤ i + (q_0 - k_0) // s: a triangle,
    cut on three sides.
    """
    seen, total = defaultdict(list), 0
    for document, columns in spans(keys, documents):
        seen[document].append(columns)
    for document, rows in spans(queries, documents):
        for columns in seen[document]:
            if rows.step != columns.step:
                raise ValueError(f"{rows} and {columns} have different steps")
            before = (rows.start - columns.start) // rows.step
            after, width = before + len(rows), len(columns)
            total += triangle(after) - triangle(before)
            total -= triangle(after - width) - triangle(before - width)
    return total


def triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0


def ring_scores(parts: Sequence[Part], documents: Documents = ()) -> list[list[int]]:
    """Count the scores of each rank in each step of a ring: N rows of N, which add up to its work.

    In step i, rank r has the keys of rank r - i.
    """
    return [
        [scores(part, parts[rank - step], documents) for step in range(len(parts))]
        for rank, part in enumerate(parts)
    ]


def ring_efficiency(parts: Sequence[Part], documents: Documents = ()) -> float:
    """Mean scores of a rank, over those of the slowest rank in each step, added up."""
    found = ring_scores(parts, documents)
    slowest = sum(map(max, zip(*found, strict=True)))
    return sum(map(sum, found)) / len(parts) / slowest if slowest else 1.0
