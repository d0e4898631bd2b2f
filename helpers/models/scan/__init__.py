"""Scans of state space models: parallel prefix scan, selective scan, state space duality (SSD).

combine      the associative operator on pairs (decay, state)
recurrence   h_t = a_t h_(t-1) + b_t as a loop, and the gradients that all forms share
blelloch     the same as a tree of depth log2 L
chunked      the same in chunks, which hand on their states
selective    Mamba's selective scan, on any of these forms
fused        the selective scan as one loop in time, which keeps almost nothing for the backward
ssd          Mamba-2's scan as matrix products in chunks
kernel       the selective scan as a Triton kernel, forward only
"""
