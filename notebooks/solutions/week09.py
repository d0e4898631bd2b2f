"""Solutions of week 9: attention with a cache, its bytes, and decoding."""

import torch


def cached_attention(x, weights, heads, cache, rotate):
    """Rotate by the place in the text, append, and let each token see all up to itself."""
    start, tokens = cache["keys"].shape[2], x.shape[1]
    q, k, v = (
        (x @ weights[name]).unflatten(-1, (heads, -1)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    places = torch.arange(start, start + tokens)
    q, k = rotate(q, places), rotate(k, places)
    cache["keys"] = k = torch.cat([cache["keys"], k], dim=2)
    cache["values"] = v = torch.cat([cache["values"], v], dim=2)
    seen = torch.ones(tokens, start + tokens, dtype=torch.bool).tril(start)
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, S + T)
    y = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
    return y.transpose(1, 2).flatten(2) @ weights["out"]


def block_allocator(state, operation, sequence, fork=None):
    """Count references: a block with several is copied before a write, with none is free."""
    free, references, tables = state["free"], state["references"], state["tables"]
    if operation == "fork":
        tables[fork] = list(tables[sequence])
        state["lengths"][fork] = state["lengths"][sequence]
        for block in tables[fork]:
            references[block] += 1
        return None
    if operation == "free":
        del state["lengths"][sequence]
        for block in tables.pop(sequence):
            references[block] -= 1
            if references[block] == 0:
                free.append(block)
        return None
    length, table = state["lengths"].get(sequence, 0), tables.get(sequence, [])
    slot, source = length % state["block_size"], None
    if slot and references[table[-1]] > 1:
        source = table[-1]
    if slot == 0 or source is not None:
        if not free:
            raise RuntimeError(f"{sequence} needs a block, but none is free")
        block = free.pop(0)
        references[block] = 1
        if source is not None:
            references[source] -= 1
            table = table[:-1]
        tables[sequence] = [*table, block]
    state["lengths"][sequence] = length + 1
    return tables[sequence][-1], slot, source


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
