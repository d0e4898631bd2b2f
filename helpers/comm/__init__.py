"""Move tensors between ranks.

mesh         named axes: which ranks share an axis, and their process groups
messages     the parts of a collective: a buffer as one row, its chunks, an exchange with peers
collectives  broadcast, all-reduce, all-gather, reduce-scatter and all-to-all, from such messages
shared_*     the same collectives through memory that the ranks of a machine share
transport    collectives that a strategy starts now and waits for later
paced        the same over a link that is as slow as you choose
regions      pairs of collectives for autograd: what a forward sends, its backward undoes
exclusive_scan   what all earlier ranks hold, combined in their order
halo         the last tokens of the rank before, for autograd
ledger       the bytes of every call: payload, by formula, by the kernel's count
cost         seconds by size: alpha and beta, fitted
"""
