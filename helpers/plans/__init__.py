"""What should happen, as pure data: the papers' formulas, and pipelines' schedules.

activation_memory   bytes that a block keeps for its backward, term by term
decode_traffic      messages of a tensor-parallel decoding step, and their bytes
handover            bytes of a prompt's cache that travel from one rank to another
schedules           the order of each rank's computations in a pipeline, checked, timed and drawn
sequence_traffic    bytes of a cut sequence: scans and convolutions beside attention
zero_memory         bytes of model states on a rank by ZeRO stage; the largest model that fits
zero_traffic        bytes that a rank sends in a step by ZeRO stage
"""
