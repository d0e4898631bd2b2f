"""Random numbers of a request: a function of its seed and a token's place, and of nothing else.

A generator's numbers would depend on the order of the draws, and so on the other requests of a
batch. These do not: a request gets the same tokens alone and in any batch.
"""

from helpers.models.dropout import counter

BITS = 53  # of a float64's fraction


def uniform(seed: int, position: int, use: int = 0) -> float:
    """Draw a number, uniform in [0, 1), with 53 bits.

    Args:
        seed: the request's.
        position: the place in the sequence of the token that the number decides on.
        use: tells apart several numbers for one place.
    """
    high, low = (counter(seed, position, use, half) for half in (0, 1))  # 32 bits each
    return (high << BITS - 32 | low >> 64 - BITS) / 2**BITS
