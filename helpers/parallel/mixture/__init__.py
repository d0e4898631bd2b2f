"""Expert parallelism: ranks have different experts, and send each row to the rank of its expert.

exchange   rows to the ranks of their experts, and back: all-to-alls of uneven parts
transform  a model whose experts are cut over ranks with different tokens
"""
