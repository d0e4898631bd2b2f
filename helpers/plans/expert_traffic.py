"""Bytes of a mixture of experts: rows to the ranks of their experts and back, by class of link.

t  tokens of a rank        k  experts of a token        D  width        e  bytes of a number
N  ranks                   E  experts                   n  nodes        L  ranks of a node, N/n
M  nodes that a token's experts may be on

A row is a token's vector, for one of its experts. If each expert gets as many rows:

    counts      E whole numbers, before the rows                    8 E (N-1)/N bytes
    dispatch    a row for each expert of each token                 t k D e (N-1)/N
    combine     as many back                                        t k D e (N-1)/N

The backward sends both again, without counts. Of all rows, (n-1)/n leave the node: a limit M does
not change that, if each expert has a row of its own. Send a token **once** to each node, and from
there on to its experts:

    between     a row for each other node of a token     t C (n-1)/n D e
    inside      a row for each expert                    t k (L-1)/L D e

C is the number of a token's nodes. It is at most M. If a token chooses its nodes, and its experts
on them, at random:

    C = M (1 - binom((M-1) E/n, k) / binom(M E/n, k))

Source: DeepSeek-V3, arXiv:2412.19437, sections 2.1.2 (node-limited routing) and 3.2.2.
"""

import math
from collections.abc import Iterable, Sequence

from helpers.plans.messages import Message, together

COUNT = 8  # bytes of a count: int64


def expert_messages(
    *,
    tokens: float,
    width: int,
    count: int,
    chosen: int,
    ranks: int,
    number_bytes: float = 4,
    recompute: str = "none",
    times: int = 1,
) -> list[Message]:
    """List the messages of mixtures over the axis ep in a step, if each expert gets as many rows.

    Args:
        tokens: t, of a micro-batch.
        width, count, chosen, ranks, number_bytes: D, E, k, N and e.
        recompute: "full" sends the forward's messages again.
        times: mixtures, times micro-batches.
    """
    forwards = 2 if recompute == "full" else 1
    of = {"axis": "ep", "call": "all_to_all", "ranks": ranks}
    rows = tokens * chosen * width * number_bytes
    return together(
        [
            Message(payload=COUNT * count, times=times * forwards, what="counts", **of),
            Message(payload=rows, times=times * 2 * (forwards + 1), what="rows", **of),
        ]
    )


def nodes_of_token(experts: int, chosen: int, nodes: int, limit: int | None = None) -> float:
    """C: how many nodes a token's experts are on, on average, if it chooses at random.

    Args:
        experts, chosen, nodes, limit: E, k, n and M; None: n.

    Raises:
        ValueError: the nodes do not divide the experts, or a token has too few to choose from.
    """
    limit = nodes if limit is None else limit
    each, rest = divmod(experts, nodes)
    if rest or not 1 <= limit <= nodes or chosen > limit * each:
        raise ValueError(
            f"{chosen} of {experts} experts on {limit} of {nodes} nodes: the nodes must divide the "
            "experts, and a token's nodes must have enough of them"
        )
    missed = math.comb((limit - 1) * each, chosen) / math.comb(limit * each, chosen)
    return limit * (1 - missed)


def rows_by_link(
    chosen: Iterable[Sequence[int]], rank: int, *, experts: int, nodes: int, local: int
) -> dict[str, dict[str, int]]:
    """Count the rows of one dispatch that a rank's tokens send inside nodes and between them.

    Args:
        chosen: of each token of the rank, its experts: k each.
        rank: of N. Rank r is on node r // L. Ranks have equally many experts, in order.
        experts, nodes, local: E, n and L.

    Returns:
        {"each": …, "once": …}, each {"inside": rows, "between": rows}. "each": a row for each
        expert goes to its rank. "once": a token goes once to each node, to the rank with this
        rank's place there, and then on. A row that stays on its rank is not counted.
    """
    home, place = divmod(rank, local)
    found = {way: {"inside": 0, "between": 0} for way in ("each", "once")}
    for own in chosen:
        targets = [divmod(expert * nodes * local // experts, local) for expert in own]
        for node, there in targets:
            found["each"]["between"] += node != home
            found["each"]["inside"] += node == home and there != place
            found["once"]["inside"] += there != place
        found["once"]["between"] += len({node for node, _ in targets} - {home})
    return found
