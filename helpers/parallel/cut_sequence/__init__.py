"""Context parallelism: a sequence that is cut over ranks.

model        a whole model, and which tokens each rank has
ring         attention: keys and values travel around the ring
collective   attention: heads for tokens (Ulysses), both (USP), or all keys gathered
scans        the selective scan and Mamba-2's scan; the state before each rank's part
pieces       a sequence that is too long for any rank's memory, piece by piece
"""
