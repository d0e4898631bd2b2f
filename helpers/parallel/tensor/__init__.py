"""Tensor and sequence parallelism: transforms that cut each layer over the axis "tp".

transform   the recipe: which module becomes what, in one table
placement   which rows or columns of each matrix a rank has
layers      the mathematics of column- and row-parallel linear modules
vocabulary  embedding and cross-entropy, cut by vocabulary
regions     the messages around a layer: whole activations, or shards of the tokens
chunks      the same messages in chunks, each beside the matrix product that needs it
checker     a forward in which each activation knows its placement; rules are its rules

Sources: Shoeybi et al. 2019 (Megatron-LM), arXiv:1909.08053; Korthikanti et al. 2022,
arXiv:2205.05198.
"""
