"""Exercises of week 5: 1F1B as data, its bubble and messages, a step on ranks, the axes."""
