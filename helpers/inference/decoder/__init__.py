"""Fast decoding: fused weights, and a compiled step, with the cache of any model.

weights   a model's matrices, fused and arranged for products with few rows
fused     the model's forward on these weights, with any cache, in shared buffers
compiled  a step of one token as one function in C, for one thread of a CPU
"""
