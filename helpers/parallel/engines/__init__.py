"""Engines order forward and backward: gradient accumulation, micro-batches.

in_turn    forward and backward of one micro-batch after the other
"""
