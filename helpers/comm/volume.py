"""How many bytes a collective sends, and in how many messages: formulas for one flat group.

The formulas follow the algorithms of Thakur, Rabenseifner and Gropp 2005, "Optimization of
Collective Communication Operations in MPICH". The operating system's counters showed which of them
gloo uses. Nodes, rails and switches that add are in `helpers.simulate.collective_time`.

Letters: S is the payload in bytes, the whole buffer that the ranks gather, reduce, scatter or
exchange parts of. N is the number of ranks in the group.
"""

CALLS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
)


def sent(
    call: str, payload: int, ranks: int, *, rank: int = 0, root: int = 0, backend: str = "gloo"
) -> float:
    """Bytes that `rank` sends in one call; headers are not counted.

    gloo uses rings for all_reduce, all_gather and the first half of reduce, and a binomial tree for
    broadcast. Its reduce_scatter is an all-reduce of which each rank keeps its part: twice the
    bytes that a ring sends. Beyond 2 MiB a rank, its reduce sends more than is counted here. Any
    other backend name means rings throughout, like NCCL's for large payloads on one level of links.

    Args:
        call: one of CALLS.
        payload: S in bytes. For all_gather the gathered result, for reduce_scatter the whole
            input, for gather and scatter all parts together, for all_to_all one rank's buffer.
        ranks: N.
        rank, root: in the group; for send, `rank` is the sender.

    Raises:
        ValueError: no such call.
    """
    share = payload / ranks
    last = ranks - 1
    match call:
        case "all_reduce":
            return 2 * last * share
        case "reduce_scatter":
            return (2 if backend == "gloo" else 1) * last * share
        case "all_gather" | "all_to_all":
            return last * share
        case "broadcast" if backend == "gloo":
            return payload * children((rank - root) % ranks, ranks)
        case "broadcast":  # a chain from the root on
            return 0.0 if (rank - root) % ranks == last else float(payload)
        case "reduce" if backend == "gloo":  # a ring's reduce-scatter, then each part to the root
            return last * share + (0 if rank == root else share)
        case "reduce":
            return 0.0 if rank == root else float(payload)
        case "gather":
            return 0.0 if rank == root else share
        case "scatter":
            return last * share if rank == root else 0.0
        case "send":
            return float(payload)
        case "recv" | "barrier":
            return 0.0
    raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")


def children(place: int, ranks: int) -> int:
    """How many ranks the rank at `place` sends to in a binomial tree; the root's place is 0.

    In step i, each of the 2^i ranks that have the data sends to the rank 2^i places further.
    """
    return sum(place < 2**i < ranks - place for i in range((ranks - 1).bit_length()))


def path(call: str, payload: int, ranks: int, *, backend: str = "gloo") -> tuple[int, float]:
    """(messages, bytes) of the slowest rank: messages one after another, and their bytes.

    A broadcast by a binomial tree takes ceil(log2 N) steps of the whole payload. A chain passes on
    pieces of it: the last rank gets them N-1 messages later. A send is one message.

    Raises:
        ValueError: no such call.
    """
    last, share = ranks - 1, payload / ranks
    if call in ("send", "recv"):
        return 1, float(payload)
    if call in ("broadcast", "reduce") and backend != "gloo":  # chains
        return last, float(payload if last else 0)
    if call in ("broadcast", "barrier"):
        steps = last.bit_length()
        return steps, float(payload * steps) if call == "broadcast" else 0.0
    whole = {"all_reduce": 2, "reduce": 2, "reduce_scatter": 2 if backend == "gloo" else 1}
    if call not in CALLS:
        raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")
    return whole.get(call, 1) * last, whole.get(call, 1) * last * share
