"""Exercises of week 4: linear layers and a loss that are cut over ranks, and the bytes of a block."""
