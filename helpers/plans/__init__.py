"""What should happen, as pure data: the papers' formulas.

activation_memory   bytes that a block keeps for its backward, term by term
"""
