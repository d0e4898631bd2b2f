"""Generate text with trained models, and serve many requests at once.

ranks   decoding on several ranks
"""
