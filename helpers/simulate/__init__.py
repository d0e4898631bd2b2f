"""Clusters that one does not have: hardware, memory, step time, planner.

`hardware.Processor` and its constants: A100, H100, H200, TPU_V4, TPU_V5P.
"""
