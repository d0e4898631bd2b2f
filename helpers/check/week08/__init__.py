"""Exercises of week 8: mixed precision, and an Adam in one kernel, which needs Triton."""
