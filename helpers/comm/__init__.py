"""Moving tensors between ranks.

mesh         named axes: which ranks share one, and their process groups
messages     what a collective is made of: a buffer in a row, its chunks, an exchange with peers
collectives  broadcast, all-reduce, all-gather, reduce-scatter and all-to-all from such messages
shared_*     the same through memory that the ranks of one machine share: barrier, segments,
             collectives
transport    what a strategy starts now and waits for later: a process group, or shared memory
ledger       the bytes of every call: payload, by formula, by the kernel's count
cost         seconds by size: alpha and beta, fitted
"""
