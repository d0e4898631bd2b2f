"""Bytes that one rank sends for a cut sequence: a state space model beside attention.

B  sequences        L  tokens, over all ranks       N  ranks        e  bytes of a number
k  tokens that the convolution sees before its own                  E  channels of the convolution
S  numbers of a sequence's state      A  numbers of its decay       W  numbers of a token's keys
                                                                       and values, together

    scan         pairs (decay, state), at distances 1, 2, 4, … < N       ≤ ⌈log2 N⌉ B (A + S) e
    convolution  the last k tokens, to the next rank                     B k E e
    attention    all keys and values travel around the ring              (N - 1) B L/N W e

Each forward is followed by a backward. Scan and convolution send as much again. Attention sends
keys and values once more, and their gradients with them, all around the ring back to their rank.

So the first two do not grow with the length, and attention does.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
arXiv:2310.01889, section 3, for the ring.
"""


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
    # Backward: keys and values N - 1 times; their gradients N times, the last time home.
    back = (2 * ranks - 1) * part if ranks > 1 else 0.0
    return {"forward": (ranks - 1) * part, "backward": back}


def place_of(rank: int, ranks: int):
    """Raise ValueError if there is no such rank."""
    if not 0 <= rank < ranks:
        raise ValueError(f"there is no rank {rank} among {ranks}: ranks count from 0")
