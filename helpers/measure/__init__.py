"""Clocks and counters: time, memory by kind, FLOPs, bytes sent, traces, peak rates.

`clock.time_of`, `memory.memory_of`, `flops.flops_of`, `sockets.SentBytes`, `trace.trace`,
`peak.peak_of`. `kernels` runs and compiles Triton kernels without a GPU.
"""
