"""Exercises of week 5: 1F1B as data, the bubble, a step of GPipe on ranks, and the axes."""
