"""Generation: tokens one after another, from a model that keeps what it has read in a cache.

draws     random numbers that depend on a request's seed and a token's place alone
sampling  the next token from logits: greedy, temperature, top-k, top-p
generate  several prompts at once, greedily or at random; one prompt as a stream
"""
