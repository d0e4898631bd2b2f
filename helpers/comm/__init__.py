"""Collective communication: device mesh and process groups, ring all-reduce, traffic ledger.

layout          named axes as pure data: the place of each rank, and which ranks form a group
mesh            a layout on running ranks: their process groups, and PyTorch's device mesh
messages        the parts of a collective: a buffer as one row, its chunks, an exchange with peers
collectives     ring and tree algorithms: broadcast, all-reduce, all-gather, reduce-scatter, …
shared_memory/  the same collectives through memory that the ranks of a machine share
transport       asynchronous collectives: a strategy starts them now and waits for them later
paced           the same over a link that is as slow as you choose
mpi             all-reduce and broadcast by mpi4py
point_to_point  send and receive between pipeline stages, while they compute
regions         autograd pairs (Megatron's f and g): what a forward sends, its backward undoes
exclusive_scan  a prefix scan over ranks: what all earlier ranks hold, combined in their order
halo            halo exchange: the last tokens of the rank before, for autograd
ledger          the ledger of traffic: bytes of every call by payload, formula and kernel counter
links           bytes inside nodes and between nodes; links that are paced between nodes only
operators       PyTorch's communication operators, for the ledger
volume          bytes and messages of a call by formula
cost            seconds by size: alpha and beta (Hockney, latency and bandwidth), fitted
"""
