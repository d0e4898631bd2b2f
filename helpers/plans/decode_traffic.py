"""Messages of one forward of tensor-parallel decoding, as data; bytes of a prompt's handover.

L  layers                       B  sequences           N  ranks
D  width of a token's vector    T  new tokens of each  V  vocabulary        e  bytes of a number
P  tokens in a block of cache   K  key/value heads     d  width of a head

    the embedding, cut by rows     one all-reduce of B T D numbers
    each block                     two all-reduces of B T D numbers: after attention, after the MLP
    the head, cut by rows          "best": an all-gather of each rank's best logit and its token
                                   "logits": an all-gather of all logits of the last token

Decoding has T = 1, so a payload is a few kilobytes, but there are 2 L + 2 messages for each token.

If one rank reads a prompt of T tokens and another rank continues it, keys and values travel in
whole blocks: ceil(T/P) P 2 L K d e bytes. The decoding rank also needs the first new token, and how
many tokens the blocks have.

Sources: Shoeybi et al. 2019, arXiv:1909.08053, section 3, for the two sums of a block and the cut
vocabulary. Pope et al. 2022, arXiv:2211.05102, section 3.2.1, for the same cut in inference. Patel
et al. 2024, "Splitwise", arXiv:2311.18677; Zhong et al. 2024, "DistServe", arXiv:2401.09670.
"""

from helpers.plans.messages import Message, together, wire

HEADS = ("best", "logits")
HEADER_BYTES = 4 * 8  # of a handover: request, tokens, blocks, first new token: int64
BEST_BYTES = 16  # a logit and its token, in float64 both: exact for every dtype of the model


def decode_messages(
    *,
    layers: int,
    width: int,
    vocab: int,
    ranks: int,
    sequences: int = 1,
    tokens: int = 1,
    number_bytes: int = 4,
    head: str = "best",
) -> list[Message]:
    """List the messages of one forward and of the choice of the next tokens; none on one rank.

    Args:
        layers, width, vocab, ranks: L, D, V, N.
        sequences: B.
        tokens: T; the prompt's length in a prefill, 1 in a decoding step.
        number_bytes: e.
        head: "best" or "logits", as above. Shards of the logits have equal sizes: V is rounded up
            to a multiple of N.

    Raises:
        ValueError: no such head, or a size below 1.
    """
    if head not in HEADS:
        raise ValueError(f"head must be one of {', '.join(HEADS)}, not {head!r}")
    positive(
        layers=layers, width=width, vocab=vocab, ranks=ranks,
        sequences=sequences, tokens=tokens, number_bytes=number_bytes,
    )  # fmt: skip
    activations = sequences * tokens * width * number_bytes
    row = BEST_BYTES if head == "best" else -(-vocab // ranks) * number_bytes
    kinds = [
        ("embedding", "all_reduce", 1, activations),
        ("blocks", "all_reduce", 2 * layers, activations),
        ("head", "all_gather", 1, ranks * sequences * row),
    ]
    return together(
        Message(axis="tp", call=call, payload=payload, times=times, ranks=ranks, what=place)
        for place, call, times, payload in kinds
    )


def decode_traffic(**sizes) -> dict[str, float]:
    """Bytes that one rank sends in a forward: {"embedding": …, "blocks": …, "head": …}.

    Args:
        sizes: as for `decode_messages`. On one rank the result is empty.
    """
    return wire(decode_messages(**sizes), "what")


def handover_bytes(
    *, tokens: int, layers: int, key_heads: int, head_width: int, block_size: int, number_bytes: int
) -> int:
    """Bytes of one prompt's handover, with its header.

    Args:
        tokens: T.
        layers, key_heads, head_width: L, K, d.
        block_size: P.
        number_bytes: e.

    Raises:
        ValueError: a size below 1.
    """
    positive(
        tokens=tokens, layers=layers, key_heads=key_heads, head_width=head_width,
        block_size=block_size, number_bytes=number_bytes,
    )  # fmt: skip
    slots = -(-tokens // block_size) * block_size
    return HEADER_BYTES + slots * 2 * layers * key_heads * head_width * number_bytes


def positive(**sizes: int):
    """Raise ValueError for the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
