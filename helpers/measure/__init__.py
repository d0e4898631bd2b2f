"""Profiler and trace, FLOP counter, peak memory, timer, bytes sent, peak rates.

`clock.time_of`, `memory.memory_of`, `flops.flops_of`, `sockets.SentBytes`, `trace.trace`,
`peak.matmul_rate`. `kernels` runs and compiles Triton kernels without a GPU.
"""
