"""Solutions of week 9: attention with a cache, its bytes, and decoding."""


def accept_or_resample(p, q, guess, draw):
    """Accept with the probability min(1, p/q); else give what the accepted guesses leave of p."""
    if draw * q[guess] < p[guess]:
        return guess
    left = (p - q).clamp(min=0)
    return left / left.sum()


def cache_bytes(layers, width, heads, kv_heads, sequences, tokens, number_bytes):
    """Each layer keeps, for each token, a key and a value of each key/value head."""
    per_token = 2 * layers * kv_heads * (width // heads)
    return per_token * tokens * sequences * number_bytes


def outgrowing_batch(
    params, param_bytes, layers, width, heads, kv_heads, tokens, number_bytes
):
    """Divide the weights' bytes by those of one sequence; the next whole number is more."""
    sequence = 2 * layers * kv_heads * (width // heads) * tokens * number_bytes
    return params * param_bytes // sequence + 1
