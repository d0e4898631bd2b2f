"""Exercises of week 9: attention with a cache, its bytes, and decoding."""
