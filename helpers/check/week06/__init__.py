"""Exercises of week 6: ZeRO."""
