"""What should happen, as pure data: the papers' formulas, and pipelines' schedules.

activation_memory   bytes that a block keeps for its backward, term by term
schedules           the order of each rank's computations in a pipeline, checked, timed and drawn
"""
