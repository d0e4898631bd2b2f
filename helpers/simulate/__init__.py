"""Clusters that you do not have: hardware, topology, time of collectives, time of a step.

`hardware.Processor` and its constants: A100, H100, H200, TPU_V4, TPU_V5P.
`topology.Topology` and its constants: DGX_2H, DGX_A100, DGX_H100.
`collective_time.seconds` of a collective, `data_parallel.step`, `weak` and `strong`.
`tensor_parallel.step`, `weak` and `strong`.
`zero.zero_3_step`: gathers one unit ahead, reduce-scatters behind the backward.
"""
