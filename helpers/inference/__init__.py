"""Generate text with trained models, and serve many requests at once.

draws     random numbers that depend on a request's seed and a token's place alone
sampling  the next token from logits: greedy, temperature, top-k, top-p
generate  several prompts at once, greedily or at random; one prompt as a stream
decoder   the same weights in fewer operators
ranks     decoding on several ranks
"""
