"""Engines: they order forward and backward.

in_turn    forward and backward of one micro-batch after the other
"""
