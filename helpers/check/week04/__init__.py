"""Exercises of week 4: layers and a loss that are cut over ranks, and bytes of a block."""
