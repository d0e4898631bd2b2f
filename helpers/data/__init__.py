"""What is trained on: real text and digits, tokens, and who gets which of them.

batch    tokens and their targets; a rank's part of them, micro-batches
order    which samples are in global batch k, the same on any number of ranks
"""
