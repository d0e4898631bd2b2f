"""Fast decoding: fused weights, and a compiled step.

weights   a Llama's matrices, fused and arranged for products with few rows
fused     its forward on these weights, with any cache, in shared buffers
table     a Llama, a Mamba or a hybrid as rows, which step.c walks
compiled  a step of one token as one function in C, for one thread of a CPU
"""
