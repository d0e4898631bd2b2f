"""Exercises of week 7: FSDP, DeepSpeed and Accelerate."""
