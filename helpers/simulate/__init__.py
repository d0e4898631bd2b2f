"""Performance model, roofline, network topology, alpha-beta: clusters that you do not have.

`hardware.Processor` and its constants: A100, H100, H200, TPU_V4, TPU_V5P.
`topology.Topology` and its constants: DGX_2H, DGX_A100, DGX_H100.
`collective_time.seconds` of a collective, `data_parallel.step`, `weak` and `strong`.
`tensor_parallel.step`, `weak` and `strong`. `three_axes.step` of a layout with pp, dp and tp.
`zero.zero_3_step`: gathers one unit ahead, reduce-scatters behind the backward.
"""
