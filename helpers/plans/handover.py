"""Bytes that travel when one rank reads a prompt and another rank continues it.

L  layers with attention      T  tokens of the prompt      P  tokens in a block of the cache
K  key/value heads            d  width of a head           e  bytes of a number

Keys and values travel in whole blocks: ceil(T/P) P 2 L K d e. The decoding rank also needs the
first new token, and how many tokens the blocks have.

Sources: Patel et al. 2024, "Splitwise", arXiv:2311.18677; Zhong et al. 2024, "DistServe",
arXiv:2401.09670.
"""

HEADER_BYTES = 4 * 8  # request, tokens, blocks, first new token: int64


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
    sizes = {
        "tokens": tokens, "layers": layers, "key_heads": key_heads, "head_width": head_width,
        "block_size": block_size, "number_bytes": number_bytes,
    }  # fmt: skip
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
    slots = -(-tokens // block_size) * block_size
    return HEADER_BYTES + slots * 2 * layers * key_heads * head_width * number_bytes
