"""Who orders forward and backward.

in_turn    one micro-batch after the other, each forward and backward
"""
