"""KV cache: preallocated, paged attention, prefix caching, sliding window, int8; recurrent states.

A cache is what a model keeps of the tokens that it has read, so that the next token costs little.

`cache.py` says what a block keeps, and what a cache promises to a model. Each other file is one way
to store it. Paged attention has three: `paged` maps tokens to blocks, `prefixes` finds the blocks
of a prompt that was read before, `allocator` owns the blocks and evicts the longest free one.
"""
