"""Decode with the same weights in fewer operators, and without copies of the cache.

weights   a model's matrices, fused and arranged for products with few rows
rows      a block's arithmetic without attention, in shared buffers
slots     keys and values of all blocks, without gaps
attend    attention of one token per sequence
compiled  a whole step as one function in C, for one thread of a CPU
decoder   a batch of sequences that start together, greedily
fused     the model's forward on these weights, with any cache
"""
