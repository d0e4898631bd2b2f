"""What should happen, as pure data: the papers' formulas.

activation_memory   bytes that a block keeps for its backward, term by term
zero_memory         bytes of model states on a rank by ZeRO stage; the largest model that fits
zero_traffic        bytes that a rank sends in a step by ZeRO stage
"""
