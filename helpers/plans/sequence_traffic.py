"""Bytes that one rank sends for a cut sequence: a state space model beside attention.

B  sequences        L  tokens, over all ranks       N  ranks        e  bytes of a number
k  tokens that the convolution sees before its own                  E  channels of the convolution
S  numbers of a sequence's state      A  numbers of its decay       H  heads, K of keys and values
d  width of a head                    W  numbers of a token's keys and values, 2 K d

    scan         pairs (decay, state), at distances 1, 2, 4, … < N     ≤ ⌈log2 N⌉ B (A + S) e
    convolution  the last k tokens, to the next rank                   B k E e
    attention    ring: all keys and values travel around it            (N - 1) B L/N W e
                 gathered: as many, in one all-gather                  (N - 1) B L/N W e
                 Ulysses: queries and results (H), keys, values (K)    (1 - 1/N) B L/N 2 (H + K) d e

Each forward is followed by a backward. Scan, convolution and Ulysses send as much again. The ring
sends keys and values once more, and their gradients behind them. A gather is followed by a
reduce-scatter.

So the first two do not grow with the length, and attention does. Only Ulysses sends less with more
ranks.

Sources: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
arXiv:2310.01889, section 3, for the ring; Jacobs et al. 2023, "DeepSpeed Ulysses",
arXiv:2309.14509; Llama 3, arXiv:2407.21783, section 3.3.2, gathers.
"""

from helpers.plans.messages import Message, together


def scan_bytes(
    *, decay: int, state: int, ranks: int, rank: int, sequences: int = 1, number_bytes: int = 4
) -> int:
    """Bytes that a rank sends for one scan forward.

    In the backward, rank r sends what rank N - 1 - r sends in the forward.

    Args:
        decay: A, numbers of the decay of a sequence.
        state: S, numbers of the state of a sequence.
        ranks: N.
        rank: the place of the rank, from 0. Rank r sends at a distance s if rank r + s exists.
    """
    place_of(rank, ranks)
    messages = sum(rank + 2**k < ranks for k in range(ranks.bit_length()))
    return messages * sequences * (decay + state) * number_bytes


def halo_bytes(
    *, tokens: int, channels: int, ranks: int, rank: int, sequences: int = 1, number_bytes: int = 4
) -> int:
    """Bytes that a rank sends for one convolution forward: nothing on the last rank.

    Args:
        tokens: k.
        channels: E.
    """
    place_of(rank, ranks)
    return (rank < ranks - 1) * sequences * tokens * channels * number_bytes


def ring_attention_bytes(
    *, length: int, kept: int, ranks: int, sequences: int = 1, number_bytes: int = 4
) -> dict[str, float]:
    """Bytes that a rank sends for one attention layer: {"forward": bytes, "backward": bytes}.

    Args:
        length: L, of the whole sequence.
        kept: W; two times key heads times their width.
    """
    place_of(0, ranks)
    part = sequences * length / ranks * kept * number_bytes
    # Backward: keys and values, and their gradients: the part's own rank adds its share at home.
    return {"forward": (ranks - 1) * part, "backward": 2 * (ranks - 1) * part}


def attention_messages(
    way: str,
    *,
    length: int,
    heads: int,
    key_heads: int,
    head_width: int,
    ranks: int,
    sequences: int = 1,
    number_bytes: int = 4,
    recompute: str = "none",
    times: int = 1,
    axis: str = "cp",
) -> list[Message]:
    """List the messages of attention over the axis cp in a step: forward and backward.

    USP on R groups of U ranks is Ulysses on U ranks with L / R tokens, and a ring of R ranks with
    H / U and K / U heads.

    Args:
        way: "ring", "ulysses" or "gathered".
        length: L, of the whole sequence. The ranks divide it.
        heads, key_heads, head_width: H, K and d.
        sequences: B, of a micro-batch. Packed sequences have messages each: 1, and B times as many.
        recompute: "none", "selective" or "full", as in a GPTConfig. Alone, attention is recomputed
            up to its last saved tensor: without Ulysses' last message.
        times: attention layers, times micro-batches.

    Raises:
        ValueError: no such way.
    """
    place_of(0, ranks)
    head = sequences * length / ranks * head_width * number_bytes  # of one rank's tokens
    kept = 2 * key_heads * head
    forwards = 1 + (recompute != "none")
    both = forwards + 1
    calls = {
        "ring": [("send", kept, (ranks - 1) * (both + 1), "keys, values")],
        "ulysses": [
            ("all_to_all", heads * head, 2 * both - (recompute == "selective"), "queries, results"),
            ("all_to_all", key_heads * head, 2 * both, "keys, values"),
        ],
        "gathered": [
            ("all_gather", ranks * kept, forwards, "keys, values"),
            ("reduce_scatter", ranks * kept, 1, "keys, values"),
        ],
    }
    if way not in calls:
        raise ValueError(f"{way!r} is none of {', '.join(calls)}")
    of = {"axis": axis, "ranks": ranks}
    return together(
        Message(call=call, payload=size, times=n * times, what=what, **of)
        for call, size, n, what in calls[way]
    )


def place_of(rank: int, ranks: int):
    """Raise ValueError if there is no such rank."""
    if not 0 <= rank < ranks:
        raise ValueError(f"there is no rank {rank} among {ranks}: ranks count from 0")
