"""Context parallelism of state space models: a sequence that is cut over ranks.

scans        the selective scan and Mamba-2's scan; the state before each rank's part
model        a whole model of Mamba blocks
pieces       a sequence that is too long for any rank's memory, piece by piece
"""
