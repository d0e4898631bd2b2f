"""Scans of state space models: parallel prefix scan, selective scan, state space duality (SSD).

recurrence   h_t = a_t h_(t-1) + b_t as a loop, its gradients, and the associative operator on steps
blelloch     the same as a tree of depth log2 L
chunked      the same in chunks, which hand on their states
selective    Mamba's selective scan, on any of these forms, and one token of it
fused        the selective scan as one loop in time, which keeps almost nothing for the backward
ssd          Mamba-2's scan as matrix products in chunks, and one token of it
kernel       the selective scan as a Triton kernel, forward only
"""
