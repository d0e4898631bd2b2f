"""Context parallelism of state space models: a sequence that is cut over ranks.

handing_on   from each rank's decay and own last state to the state before each rank
scans        the selective scan and Mamba-2's scan
model        a whole model of Mamba blocks
pieces       a sequence that is too long for any rank's memory, piece by piece
"""
