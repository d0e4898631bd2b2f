"""Moving tensors between ranks.

mesh         named axes: which ranks share one, and their process groups
messages     what a collective is made of: a buffer in a row, its chunks, an exchange with peers
collectives  broadcast, all-reduce, all-gather, reduce-scatter and all-to-all from such messages
"""
